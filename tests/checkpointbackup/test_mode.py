"""Which mode a run has, what would be lost, and whether a probe outlasts the freeze."""

from typing import Any

import pytest

from holdfast.checkpointbackup.mode import (
    BackedUpPod,
    CannotSave,
    choose_mode,
    estimated_freeze_s,
    probe_warnings,
    saved_containers,
)
from tests.checkpointbackup.backups import backup, details

JSON = dict[str, Any]
SIDECAR = {"name": "holdfast-sidecar", "restartPolicy": "Always"}


def mounting(volume: JSON, *, read_only: bool = False) -> BackedUpPod:
    mount = {"name": "data", "mountPath": "/data", "readOnly": read_only}
    return details(containers=[{"name": "main", "volumeMounts": [mount]}], volumes=[{"name": "data", **volume}])


def chosen(pod: BackedUpPod, mode: str = "auto", **spec: Any) -> tuple[str, str]:
    """The mode and what is lost, or the reason of the refusal and its message."""
    try:
        found = choose_mode(backup({"mode": mode, **spec}).spec, pod)
    except CannotSave as refusal:
        return refusal.reason, str(refusal)
    return found.mode, found.lost


def test_auto_takes_the_sidecar_where_there_is_one() -> None:
    assert chosen(details(initContainers=[SIDECAR])) == ("application", "")


def test_auto_takes_the_runtime_where_nothing_is_lost() -> None:
    assert chosen(details()) == ("container", "")


@pytest.mark.parametrize(("mode", "sidecar"), [("container", True), ("container", False), ("auto", False)])
def test_where_pods_are_processes_no_memory_is_saved(mode: str, sidecar: bool) -> None:
    pod = details(initContainers=[SIDECAR] if sidecar else [])
    with pytest.raises(CannotSave, match="on one machine no containers are run") as refused:
        choose_mode(backup({"mode": mode}).spec, pod, runs_containers=False)
    assert refused.value.reason == "NoContainers"


@pytest.mark.parametrize("mode", ["application", "auto"])
def test_where_pods_are_processes_trainings_save_themselves(mode: str) -> None:
    found = choose_mode(backup({"mode": mode}).spec, details(initContainers=[SIDECAR]), runs_containers=False)
    assert found.mode == "application"


WRITABLE = [
    ({"emptyDir": {}}, "/data of container main (volume data, emptyDir)"),
    ({"emptyDir": {"medium": "Memory"}}, "/data of container main (volume data, in memory)"),
    ({"persistentVolumeClaim": {"claimName": "c"}}, "/data of container main (volume data, claim c)"),
    ({"hostPath": {"path": "/x"}}, "/data of container main (volume data, a volume)"),
]


@pytest.mark.parametrize(("volume", "lost"), WRITABLE)
def test_auto_refuses_a_container_that_would_lose_files_and_container_tries(volume: JSON, lost: str) -> None:
    reason, message = chosen(mounting(volume))
    assert reason == "WouldLoseFiles"
    assert lost in message
    assert "spec.mode: container" in message
    assert chosen(mounting(volume), "container") == ("container", lost)


@pytest.mark.parametrize("source", ["configMap", "secret", "projected", "downwardAPI", "image"])
def test_what_no_container_can_write_to_is_not_lost(source: str) -> None:
    assert chosen(mounting({source: {"name": "n"}})) == ("container", "")


def test_a_read_only_mount_is_not_lost_unless_it_is_memory() -> None:
    assert chosen(mounting({"emptyDir": {}}, read_only=True)) == ("container", "")
    assert chosen(mounting({"persistentVolumeClaim": {"claimName": "c", "readOnly": True}})) == ("container", "")
    assert chosen(mounting({"emptyDir": {"medium": "Memory"}}, read_only=True))[0] == "WouldLoseFiles"


def test_a_block_device_that_can_be_written_is_lost() -> None:
    device = {"name": "main", "volumeDevices": [{"name": "data", "devicePath": "/dev/xvda"}]}
    claim = {"claimName": "c"}

    def pod(**claim: object) -> BackedUpPod:
        return details(containers=[device], volumes=[{"name": "data", "persistentVolumeClaim": claim}])

    reason, message = chosen(pod(**claim))
    assert reason == "WouldLoseFiles"
    assert "/dev/xvda of container main (volume data, claim c)" in message
    assert chosen(pod(**claim, readOnly=True)) == ("container", "")


def test_volumes_of_containers_that_are_not_saved_do_not_matter() -> None:
    writes = {"name": "log", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    pod = details(containers=[{"name": "main"}, writes], volumes=[{"name": "data", "emptyDir": {}}])
    assert chosen(pod)[0] == "WouldLoseFiles"
    assert chosen(pod, containers=[{"name": "main"}]) == ("container", "")


def test_application_needs_the_sidecar() -> None:
    reason, message = chosen(details(), "application")
    assert (reason, "holdfast-sidecar" in message) == ("NoSidecar", True)
    assert chosen(details(initContainers=[SIDECAR]), "application") == ("application", "")


def test_a_container_that_the_pod_does_not_have_is_named_with_those_that_it_has() -> None:
    reason, message = chosen(details(), containers=[{"name": "other"}])
    assert (reason, message) == ("ContainerMissing", "pod trainer has no container other: it has main")


def test_by_default_all_are_saved_but_init_containers_and_our_own() -> None:
    pod = details(containers=[{"name": "a"}, {"name": "b"}], initContainers=[{"name": "init"}, SIDECAR])
    assert [each.name for each in saved_containers(backup().spec, pod)] == ["a", "b"]


def test_a_native_sidecar_is_saved_where_it_is_listed() -> None:
    pod = details(containers=[{"name": "a"}], initContainers=[{"name": "proxy", "restartPolicy": "Always"}])
    listed = backup({"containers": [{"name": "proxy"}]}).spec
    assert [each.name for each in saved_containers(listed, pod)] == ["proxy"]


def probed(memory: str = "", **probe: int) -> BackedUpPod:
    resources = {"limits": {"memory": memory}} if memory else {}
    return details(containers=[{"name": "main", "livenessProbe": probe, "resources": resources}])


PROBES = [
    # 1 + 10 × 2 = 21 s against an estimate of 4 GiB at 256 MiB/s.
    (probed("4Gi"), None, None),
    (probed("8Gi"), None, "after 21 s without an answer, and the freeze may take, by an estimate from its memory, 32"),
    (probed("8Gi"), 3.0, None),
    (probed("1Gi"), 40.0, "after 21 s without an answer, and the freeze took 40.0 s"),
    (probed(periodSeconds=1, failureThreshold=1, timeoutSeconds=1), None, "after 1 s without an answer"),
    (probed(periodSeconds=5, failureThreshold=2, timeoutSeconds=1), None, None),
    (details(), 1000.0, None),
]


@pytest.mark.parametrize(("pod", "frozen_s", "warned"), PROBES)
def test_a_probe_that_fails_before_the_freeze_is_over_is_warned_of_with_both_numbers(
    pod: BackedUpPod, frozen_s: float | None, warned: str | None
) -> None:
    found = list(probe_warnings(pod.spec.containers, frozen_s))
    assert len(found) == (warned is not None)
    assert all(warned in text for text in found if warned)


def test_memory_that_is_not_written_or_can_not_be_read_is_taken_for_little() -> None:
    assert {estimated_freeze_s(pod.spec.containers[0]) for pod in (probed(), probed("1Gi"), probed("much"))} == {5.0}
