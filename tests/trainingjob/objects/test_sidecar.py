"""The sidecar of a worker: when there is one, what it is told, and what only it sees."""

from base64 import b64encode
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from holdfast.api.core.objects import PodSpec
from holdfast.api.reports import AUDIENCE
from holdfast.checkpoints.settings import AWS, AZURE, GOOGLE, open_bucket
from holdfast.local.kubelet.environment import expand
from holdfast.scheduling.constraints import shape_of
from holdfast.scheduling.resources import parse_nanos
from holdfast.sidecar.progress import NAMES
from holdfast.sidecar.settings import PORT, PROGRESS_PORT, Checkpoints, SidecarSettings, settings
from holdfast.trainingjob.objects.environment import environment
from holdfast.trainingjob.objects.sidecar import has_sidecar
from tests.trainingjob.objects.family import DEFAULTS, JSON, child, container, pod, sidecar
from tests.trainingjobs import UID, training_job

ON_A_CLAIM: JSON = {"checkpoint": {"storage": {"pvcName": "shared"}}}
STORES: dict[str, JSON] = {
    "s3": {"type": "s3", "s3Bucket": "models", "region": "eu-west-1", "endpoint": "http://minio:9000"},
    "gcs": {"type": "gcs", "gcsBucket": "models", "secretRef": {"name": "keys"}},
    "azure": {"type": "azure", "azureContainer": "models", "azureAccount": "acc", "secretRef": {"name": "keys"}},
}
WATCHING: tuple[JSON, ...] = (
    {"monitoring": {}},
    {"successPolicy": {"targetAccuracy": 0.9}},
    {"progressDeadlineSeconds": 60},
)


def seen(described: JSON, *, index: int = 1, ip: str = "10.0.0.7") -> dict[str, str]:
    """The variables of a container as the kubelet hands them to it; what a Secret holds is its key in base64."""
    found: dict[str, str] = {}
    for variable in described["env"]:
        match variable.get("valueFrom"):
            case None:
                found[variable["name"]] = expand(variable.get("value", ""), found)
            case {"fieldRef": {"fieldPath": path}}:
                found[variable["name"]] = ip if path == "status.podIP" else str(index)
            case {"secretKeyRef": {"key": key}}:
                found[variable["name"]] = b64encode(str(key).encode()).decode()
    return found


def told(spec: JSON, *, attempt: int = 0) -> SidecarSettings:
    (found,) = child("Job", training_job(spec, status={"restartCount": attempt}))["spec"]["template"]["spec"][
        "initContainers"
    ]
    return settings(seen(found))


def mounted(described: JSON) -> dict[str, JSON]:
    return {mount["mountPath"]: mount for mount in described["volumeMounts"]}


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({}, True),
        ({"checkpoint": {}}, True),
        ({"checkpoint": {"enabled": False}}, True),
        ({"monitoring": {"enabled": False}}, False),
        ({"monitoring": {"enabled": False}, "checkpoint": {"enabled": False}}, False),
        ({"monitoring": {"enabled": False}, "checkpoint": {}}, True),
        ({"checkpoint": {"enabled": False}, "monitoring": {}}, True),
        *((spec, True) for spec in WATCHING),
        *(({"monitoring": {"enabled": False}, **spec}, True) for spec in WATCHING[1:]),
    ],
)
def test_it_is_there_unless_it_is_turned_off_and_nothing_needs_it(spec: JSON, wanted: bool) -> None:
    assert has_sidecar(training_job(spec)) is wanted
    assert ("initContainers" in pod(spec)["spec"]) is wanted
    assert ("livenessProbe" in container(spec)) is wanted
    names = {variable["name"] for variable in container(spec)["env"]}
    assert ({"PROGRESS_FILE", "PROGRESS_URL", "HOLDFAST_NOTICE_FILE"} <= names) is wanted
    volumes = {volume["name"] for volume in pod(spec)["spec"]["volumes"]}
    assert ({"holdfast-run", "holdfast-token"} <= volumes) is wanted


def test_it_stays_beside_the_training_and_starts_before_it() -> None:
    found = sidecar(ON_A_CLAIM)
    assert (found["name"], found["image"], found["restartPolicy"]) == ("holdfast-sidecar", "holdfast:test", "Always")
    assert found["command"] == ["holdfast", "sidecar"]
    probe = found["startupProbe"]
    assert probe["httpGet"] == {"path": f"/{UID}/started", "port": PORT}
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 24 * 3600


def test_it_knows_whether_a_worker_that_fails_is_replaced() -> None:
    launched = ({**ON_A_CLAIM, "command": ["torchrun", f"--nnodes={nodes}"]} for nodes in ("2", "1:2"))
    assert [told(spec).elastic for spec in launched] == [False, True]


def test_it_understands_what_it_is_told() -> None:
    spec = {**ON_A_CLAIM, "monitoring": {"metricsPort": 9000}, "numWorkers": 3}
    spec["checkpoint"] = {**ON_A_CLAIM["checkpoint"], "retention": 7, "resumeFrom": "/team-a/bert"}
    assert told(spec, attempt=4) == SidecarSettings(
        job="bert",
        namespace="ml",
        uid=UID,
        attempt=4,
        index=1,
        workers=3,
        checkpoints=Checkpoints(
            folder=Path("/checkpoints/attempt-4"),
            resume_link=Path("/checkpoints/attempt-4.resume"),
            keep=7,
            resume_from="/holdfast-volume/team-a/bert",
        ),
        progress_file=Path("/holdfast/progress.jsonl"),
        notice_file=Path("/holdfast/notice"),
        state_dir=Path("/holdfast-state"),
        metrics_port=9000,
        metric_names=NAMES,
        reports_file=Path("/etc/holdfast/reports.json"),
        token_file=Path("/var/run/secrets/holdfast/token"),
        grace_s=90.0,
        host="10.0.0.7",
    )


@pytest.mark.parametrize("spec", WATCHING)
def test_without_checkpoints_it_keeps_none(spec: JSON) -> None:
    assert told(spec).checkpoints is None
    assert "/checkpoints" not in mounted(sidecar(spec))
    assert (told(spec).metrics_port is not None) == ("monitoring" in spec)


def test_the_training_finds_the_same_files_and_the_way_to_the_sidecar() -> None:
    training, beside = seen(container(ON_A_CLAIM)), seen(sidecar(ON_A_CLAIM))
    shared = ("HOLDFAST_JOB", "HOLDFAST_NAMESPACE", "HOLDFAST_ATTEMPT", "HOLDFAST_INDEX", "HOLDFAST_POD_IP")
    for name in (*shared, "PROGRESS_FILE", "HOLDFAST_NOTICE_FILE", "CHECKPOINT_DIR", "RESUME_FROM"):
        assert training[name] == beside[name]
    for path in ("/holdfast", "/checkpoints", "/etc/holdfast"):
        assert mounted(container(ON_A_CLAIM))[path] == mounted(sidecar(ON_A_CLAIM))[path]


@pytest.mark.parametrize(
    ("spec", "shared", "host"),
    [
        (ON_A_CLAIM, False, "127.0.0.1"),
        ({**ON_A_CLAIM, "podTemplate": {"hostNetwork": True}}, False, "10.0.0.7"),
        (ON_A_CLAIM, True, "10.0.0.7"),
    ],
    ids=["a pod's own", "the node's", "all pods'"],
)
def test_progress_is_posted_to_the_loopback_where_that_is_the_pods_own(spec: JSON, shared: bool, host: str) -> None:
    here = structs.replace(DEFAULTS, shared_loopback=shared)
    training = seen({"env": environment(training_job(spec), here)})
    assert training["PROGRESS_URL"] == f"http://{host}:{PROGRESS_PORT}/progress"


def test_every_file_that_it_is_told_of_lies_in_a_mount() -> None:
    found = sidecar(ON_A_CLAIM)
    files = {name: value for name, value in seen(found).items() if value.startswith("/")}
    assert {"PROGRESS_FILE", "HOLDFAST_STATE_DIR", "HOLDFAST_TOKEN_FILE", "CHECKPOINT_DIR"} <= files.keys()
    for name, value in files.items():
        assert name == "TERMINATION_LOG" or any(f"{value}/".startswith(f"{path}/") for path in mounted(found)), name


def test_what_it_remembers_is_out_of_the_trainings_reach() -> None:
    assert mounted(sidecar(ON_A_CLAIM))["/holdfast-state"] == {
        "name": "holdfast-run",
        "mountPath": "/holdfast-state",
        "subPath": "state",
    }
    (shared,) = [mount for mount in container(ON_A_CLAIM)["volumeMounts"] if mount["name"] == "holdfast-run"]
    assert shared == {"name": "holdfast-run", "mountPath": "/holdfast", "subPath": "run"}


def test_its_token_is_for_reports_alone_and_its_own() -> None:
    (volume,) = [volume for volume in pod(ON_A_CLAIM)["spec"]["volumes"] if volume["name"] == "holdfast-token"]
    token = {"audience": AUDIENCE, "expirationSeconds": 3600, "path": "token"}
    assert volume["projected"] == {"sources": [{"serviceAccountToken": token}]}
    assert mounted(sidecar(ON_A_CLAIM))["/var/run/secrets/holdfast"]["readOnly"] is True
    assert "holdfast-token" not in {mount["name"] for mount in container(ON_A_CLAIM)["volumeMounts"]}


@pytest.mark.parametrize("kind", STORES)
def test_credentials_are_the_sidecars_alone(kind: str) -> None:
    spec = {"checkpoint": {"storage": STORES[kind]}}
    training, beside = container(spec), sidecar(spec)
    assert not [variable for variable in training["env"] if "secretKeyRef" in variable.get("valueFrom", {})]
    assert not seen(training).keys() & {*AWS, *GOOGLE, *AZURE, "HOLDFAST_STORE"}
    assert not [mount for mount in training["volumeMounts"] if mount["name"] == "holdfast-store"]
    assert seen(beside).keys() & {*AWS, *GOOGLE, *AZURE}


@pytest.mark.parametrize(("kind", "scheme"), [("s3", "s3"), ("gcs", "gs"), ("azure", "az")])
def test_it_can_open_the_store_with_what_it_is_given(kind: str, scheme: str, tmp_path: Path) -> None:
    account = tmp_path / "service-account.json"
    account.write_text('{"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": true}')
    found = seen(sidecar({"checkpoint": {"storage": STORES[kind]}}))
    here = {name: value.replace("/etc/holdfast-store", str(tmp_path)) for name, value in found.items()}
    for name in ("AZURE_STORAGE_ENDPOINT", "AZURE_ALLOW_HTTP", "AWS_ALLOW_HTTP", "AWS_SESSION_TOKEN"):
        here.pop(name, None)  # which a Secret need not hold
    assert open_bucket(found["HOLDFAST_STORE"], here).address == f"{scheme}://models/ml/bert/{UID}"
    unknown = {name for name in found if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))} - {*AWS, *GOOGLE, *AZURE}
    assert unknown == set()


@pytest.mark.parametrize(
    ("spec", "grace_s"),
    [
        ({"monitoring": {}}, 30),
        (ON_A_CLAIM, 90),
        ({"checkpoint": {"storage": {"type": "nfs", "nfsServer": "filer", "nfsPath": "/ml"}}}, 90),
        *(({"checkpoint": {"storage": storage}}, 180) for storage in STORES.values()),
        ({**ON_A_CLAIM, "podTemplate": {"terminationGracePeriodSeconds": 5}}, 5),
        ({**ON_A_CLAIM, "podTemplate": {"terminationGracePeriodSeconds": 0}}, 0),
        ({"monitoring": {}, "podTemplate": {"terminationGracePeriodSeconds": 300}}, 300),
    ],
)
def test_a_worker_has_the_time_that_a_last_save_takes(spec: JSON, grace_s: int) -> None:
    assert pod(spec)["spec"].get("terminationGracePeriodSeconds", 30) == grace_s
    assert told(spec).grace_s == grace_s


def test_the_kubelet_asks_it_for_the_training() -> None:
    trainer = container(ON_A_CLAIM)
    probe = trainer["livenessProbe"]
    assert probe["httpGet"] == {"path": f"/{UID}/live", "port": PORT}
    assert (probe["periodSeconds"], probe["failureThreshold"]) == (5, 36)
    assert probe["terminationGracePeriodSeconds"] == 5
    assert trainer["lifecycle"] == {"preStop": {"httpGet": {"path": f"/{UID}/prestop", "port": PORT}}}


def test_its_ports_are_declared_so_that_two_of_them_keep_off_one_nodes_network() -> None:
    assert [port["containerPort"] for port in sidecar(ON_A_CLAIM)["ports"]] == [PORT, PROGRESS_PORT]


def test_room_is_looked_for_for_both() -> None:
    workers = pod({**ON_A_CLAIM, "gpusPerWorker": 1, "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}})
    worker = msgspec.convert(workers["spec"], PodSpec)
    assert shape_of(worker, workers["metadata"]["labels"], "ml").requests == {
        "cpu": parse_nanos("2050m"),
        "memory": parse_nanos("1152Mi"),
        "nvidia.com/gpu": parse_nanos(1),
        "pods": parse_nanos(1),
    }


def test_it_writes_to_its_mounts_alone() -> None:
    assert sidecar(ON_A_CLAIM)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


@pytest.mark.parametrize(
    "names",
    [
        {"name": "HOLDFAST_METRIC_NAMES", "value": "loss=my_loss"},
        {"name": "HOLDFAST_METRIC_NAMES", "valueFrom": {"configMapKeyRef": {"name": "names", "key": "metrics"}}},
    ],
)
def test_of_the_users_variables_it_gets_the_names_of_their_metrics_alone(names: dict[str, Any]) -> None:
    own = [
        {"name": "PATH", "value": "/mine"},
        {"name": "LOG_LEVEL", "value": "x"},
        {"name": "RANK", "value": "9"},
        names,
    ]
    assert sidecar({**ON_A_CLAIM, "env": own})["env"] == [*sidecar(ON_A_CLAIM)["env"], names]


def test_the_names_of_metrics_reach_it() -> None:
    own = [{"name": "HOLDFAST_METRIC_NAMES", "value": "loss=my_loss"}]
    assert told({"monitoring": {}, "env": own}).metric_names == {**NAMES, "loss": "my_loss"}
