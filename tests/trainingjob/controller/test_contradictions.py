"""Jobs that ask for what can't be together: each is told so or waits, and nobody is reconciled for ever."""

import asyncio
from typing import Any

import pytest

from holdfast.cluster.errors import Invalid
from holdfast.cluster.resources import JOBS, PODS, TRAINING_JOBS
from holdfast.runtime.operator import Operator
from tests.contract.pool import Pool
from tests.control_plane.waiting import eventually
from tests.trainingjob.controller.lab import TrainingJobLab

JSON = dict[str, Any]
AFFINITY = "requiredDuringSchedulingIgnoredDuringExecution"


def node_affinity(operator: str, *values: str) -> JSON:
    term = {"matchExpressions": [{"key": "zone", "operator": operator, **({"values": [*values]} if values else {})}]}
    return {"nodeAffinity": {AFFINITY: {"nodeSelectorTerms": [term]}}}


def pod_affinity(kind: str, job: str) -> JSON:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"training-job": job}}}
    return {kind: {AFFINITY: [term]}}


CONTRADICTIONS: dict[str, JSON] = {
    "limits-below-requests": {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
    "memory-of-nobody": {"resources": {"requests": {"memory": "1Ei"}}},
    "cpus-of-nobody": {"resources": {"requests": {"cpu": "100000"}}},
    "gpus-of-nobody": {"gpusPerWorker": 8},
    "two-numbers-of-gpus": {"gpusPerWorker": 2, "resources": {"limits": {"nvidia.com/gpu": "1"}}},
    "an-extended-resource": {"resources": {"limits": {"example.com/none": "1"}}},
    "in-and-not-in": {"scheduling": {"affinity": node_affinity("In", "a"), "nodeSelector": {"zone": "b"}}},
    "a-zone-that-is-none": {"scheduling": {"affinity": node_affinity("In", "nowhere")}},
    "no-zone-may-exist": {"scheduling": {"affinity": node_affinity("DoesNotExist"), "nodeSelector": {"zone": "a"}}},
    "beside-nobody": {"scheduling": {"affinity": pod_affinity("podAffinity", "nobody")}},
    "beside-and-apart": {
        "scheduling": {
            "affinity": {**pod_affinity("podAffinity", "beside-and-apart"), **pod_affinity("podAntiAffinity", "x")}
        }
    },
    "apart-from-itself": {"scheduling": {"affinity": pod_affinity("podAntiAffinity", "apart-from-itself")}},
    "a-priority-of-nobody": {"scheduling": {"priority": "no-such-class"}},
    "a-runtime-of-nobody": {"podTemplate": {"runtimeClassName": "no-such-runtime"}},
    "an-account-of-nobody": {"podTemplate": {"serviceAccountName": "no-such-account"}},
    "root-that-is-not-root": {"podTemplate": {"securityContext": {"runAsUser": 0, "runAsNonRoot": True}}},
    "a-claim-of-nobody": {"checkpoint": {"storage": {"type": "pvc", "pvcName": "no-such-claim"}}},
    "a-class-of-nobody": {"checkpoint": {"storage": {"type": "pvc", "size": "1Gi", "storageClassName": "none"}}},
    "resumed-from-nowhere": {"checkpoint": {"resumeFrom": "s3://no-such-bucket/job/checkpoint-epoch-1"}},
    "done-before-it-begins": {"failurePolicy": {"activeDeadlineSeconds": 1}, "gpusPerWorker": 8},
    "never-and-always": {"failurePolicy": {"restartPolicy": "Never", "backoffLimit": 100}},
    "no-grace-and-a-save": {"podTemplate": {"terminationGracePeriodSeconds": 0}, "checkpoint": {"interval": "1h"}},
    "host-network-on-one-node": {"podTemplate": {"hostNetwork": True}, "numWorkers": 3},
    "more-nodes-than-workers": {"command": ["torchrun", "--nnodes=9:3", "train.py"]},
    "gone-at-once": {"ttlSecondsAfterFinished": 0, "failurePolicy": {"activeDeadlineSeconds": 1}, "gpusPerWorker": 8},
    "suspended-with-a-deadline": {"suspend": True, "failurePolicy": {"activeDeadlineSeconds": 1}},
    "spread-over-nothing": {
        "podTemplate": {
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "no-such-key", "whenUnsatisfiable": "DoNotSchedule"}
            ]
        }
    },
}


@pytest.fixture
def operator_options() -> dict[str, Any]:
    """What is looked at again after a while is not looked at within this test."""
    return {"explain_s": 3600.0, "lost_pod_timeout_s": 3600.0}


@pytest.mark.every_engine
async def test_nobody_is_reconciled_for_ever(lab: TrainingJobLab, pool: Pool, operator: Operator) -> None:
    assert len(CONTRADICTIONS) >= 24
    await pool.add(labels={"zone": "a"})
    refused = []
    for name, spec in CONTRADICTIONS.items():
        try:
            await lab.submit(name, **spec)
        except Invalid:
            refused.append(name)
    assert len(CONTRADICTIONS) - len(refused) >= 20, refused

    async def spent() -> tuple[float, dict[str, str]]:
        """What was done so far: reconciles, and the version of everything."""
        samples = (one for metric in operator.registry.collect() for one in metric.samples)
        reconciles = sum(one.value for one in samples if one.name == "holdfast_reconciles_total")
        jobs = (await lab.cluster.list(TRAINING_JOBS, namespace=lab.namespace)).items
        made = (await lab.cluster.list(JOBS, namespace=lab.namespace)).items
        pods = (await lab.cluster.list(PODS, namespace=lab.namespace)).items
        versions = {each.metadata.uid: each.metadata.resource_version for each in (*jobs, *made, *pods)}
        return reconciles, versions

    async def quiet() -> bool:
        """Neither a reconcile nor a write for a second: a loop that is hot makes hundreds."""
        before = await spent()
        await asyncio.sleep(1)
        return await spent() == before

    await eventually(quiet, bool, what="an operator that has nothing to do", within_s=60)
    jobs = (await lab.cluster.list(TRAINING_JOBS, namespace=lab.namespace)).items
    assert [job.metadata.name for job in jobs if job.status is None or not job.status.state] == []
    assert (await spent())[0] < 40 * len(CONTRADICTIONS)
