"""The pod that looks at a volume."""

from typing import Any

import msgspec

from holdfast.api.checkpoint import CheckpointStorage
from holdfast.api.meta import Key
from holdfast.cli.checkpoints.pod import address_of, pod
from holdfast.cluster.resources import PODS, TRAINING_JOBS
from tests.cli.conftest import real_lab
from tests.control_plane.server import ControlPlane
from tests.trainingjobs import UID, training_job

PVC = CheckpointStorage()
NFS = msgspec.convert({"type": "nfs", "nfsServer": "files", "nfsPath": "/export", "prefix": "a/b"}, CheckpointStorage)


def made(spec: dict[str, Any] | None = None, kept: CheckpointStorage = PVC, *, writes: bool = False) -> Any:
    job = training_job({"checkpoint": {}, **(spec or {})})
    return pod(job, kept, name="bert-checkpoints-1", image="holdfast:1", command=["holdfast"], writes=writes)


def test_it_mounts_the_jobs_own_folder_and_cannot_write_unless_it_must() -> None:
    (mount,) = made()["spec"]["containers"][0]["volumeMounts"]
    assert mount["subPath"] == f"ml/bert/{UID}"
    assert mount["readOnly"] is True
    assert "readOnly" not in made(writes=True)["spec"]["containers"][0]["volumeMounts"][0]
    (volume,) = made()["spec"]["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "bert-checkpoints"}
    assert made(kept=NFS)["spec"]["volumes"][0]["nfs"] == {"server": "files", "path": "/export"}


def test_it_goes_with_its_job_ends_by_itself_and_has_no_rights() -> None:
    body = made()
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("TrainingJob", UID)
    assert not {"controller", "blockOwnerDeletion"} & set(owner), "its maker need not be allowed to finalize the job"
    spec = body["spec"]
    assert spec["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] > 0
    assert spec["automountServiceAccountToken"] is False


def test_nobody_takes_it_for_a_worker() -> None:
    labels = made()["metadata"]["labels"]
    assert not {"training-job", "trainingjob", "app.kubernetes.io/managed-by"} & set(labels)


def test_it_runs_as_the_workers_do_and_where_they_may() -> None:
    secrets = [{"name": "registry"}]
    spec = made(
        {
            "scheduling": {
                "nodeSelector": {"pool": "a"},
                "tolerations": [{"key": "x", "operator": "Exists"}],
                "priority": "high",
            },
            "podTemplate": {"securityContext": {"runAsUser": 7}, "imagePullSecrets": secrets},
        }
    )["spec"]
    assert (spec["nodeSelector"], list(spec["imagePullSecrets"])) == ({"pool": "a"}, secrets)
    assert spec["tolerations"] == [{"key": "x", "operator": "Exists"}]
    assert spec["securityContext"]["runAsUser"] == 7
    assert "priorityClassName" not in spec


def test_the_output_says_where_the_folder_is() -> None:
    assert address_of(training_job(), PVC) == f"pvc/bert-checkpoints/ml/bert/{UID}"
    assert address_of(training_job(), NFS) == "files:/export/a/b"


async def test_the_strictest_namespace_takes_it(control_plane: ControlPlane) -> None:
    async with real_lab(control_plane) as lab:
        control_plane.kubectl("label", "namespace", lab.namespace, "pod-security.kubernetes.io/enforce=restricted")
        await lab.job("bert", checkpoint={})
        job = await lab.cluster.get(TRAINING_JOBS, Key(lab.namespace, "bert"))
        body = pod(job, PVC, name="bert-checkpoints-1", image="holdfast:1", command=["holdfast"], writes=True)
        found = await lab.cluster.create(PODS, body, namespace=lab.namespace)
        assert found.metadata.owner_references[0].uid == job.metadata.uid
