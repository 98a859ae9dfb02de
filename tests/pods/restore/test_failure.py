"""Messages that kubelets and containerd 2.2.9 really give, told in our words and with what would change it."""

import msgspec
import pytest

from holdfast.api.core.objects import Pod
from holdfast.pods.restore.failure import (
    CreationFailure,
    base_image_failure,
    creation_failure,
    has_base_images,
    unusable_image,
)
from holdfast.pods.restore.protocol import Fault
from tests.pods.restore.restores import BASE, IMAGE, restored, terminated, waiting

OFF = "checkpoint restore via CreateContainer is disabled by configuration"
NO_BASE = (
    f"failed to pull checkpoint base image {BASE}: failed to resolve reference: failed to authorize: "
    "no basic auth credentials"
)
NO_CRIU = "checkpoint restore is not enabled: criu binary not found in shim path or system PATH"
CRIU_FAILED = (
    "failed to restore containerd task: failed to create shim task: OCI runtime restore failed: criu failed: type "
    "NOTIFY errno 0\nlog file: /run/containerd/io.containerd.runtime.v2.task/k8s.io/8b00/work/restore.log"
)
NOT_OURS = "failed to create containerd task: no space left on device"
NO_SECRET = (
    f'Back-off pulling image "{IMAGE.image}": ErrImagePull: failed to pull and unpack image "{IMAGE.image}": failed to '
    "resolve image: pull access denied, repository does not exist or may require authorization: authorization failed: "
    "no basic auth credentials"
)


def failure(pod: Pod) -> CreationFailure:
    found = creation_failure(pod, [IMAGE])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("message", "fault", "advice"),
    [
        (OFF, Fault.NODE, "set enable_experimental_restore_via_create = true"),
        (NO_CRIU, Fault.NODE, "install CRIU 4.2 or newer"),
        (NO_BASE, Fault.BASE_IMAGE, "bring the base image to the node first"),
        ("failed to read config.dump: no such file", Fault.IMAGE, "start from an older run"),
        ("restoring x expects following bind mounts defined (/data)", Fault.IMAGE, "start from an older run"),
        (NOT_OURS, Fault.IMAGE, "look at the runtime's words"),
    ],
)
def test_a_container_that_can_not_be_created_has_a_class_of_its_own(message: str, fault: Fault, advice: str) -> None:
    found = failure(restored(waiting("CreateContainerError", message)))
    assert (found.container, found.node, found.fault) == ("trainer", "n1", fault)
    assert found.message.startswith("container trainer can't be created from its checkpoint on n1 (")
    assert advice in found.message


@pytest.mark.parametrize(
    "pod",
    [
        restored(terminated("StartError", CRIU_FAILED)),
        restored(waiting("RunContainerError", CRIU_FAILED)),
        restored(waiting("CrashLoopBackOff", "back-off 10s"), lastState=terminated("StartError", CRIU_FAILED)),
    ],
)
def test_a_restore_that_criu_gives_up_is_the_images_fault_whatever_the_restart_policy(pod: Pod) -> None:
    found = failure(pod)
    assert found.fault is Fault.IMAGE
    assert "criu failed" in found.message
    assert "restore.log" in found.message, "where an administrator looks next"


def test_a_checkpoint_that_can_not_be_fetched_asks_for_a_pull_secret() -> None:
    found = failure(restored(waiting("ImagePullBackOff", NO_SECRET)))
    assert found.fault is Fault.NODE
    assert found.message.startswith("the checkpoint of container trainer can't be fetched to n1: ")
    assert found.message.endswith("the pod needs a pull secret for that registry")
    assert "spec.image" not in found.message, "that is advice for jobs"


@pytest.mark.parametrize(
    "state",
    [
        waiting("ContainerCreating"),
        {"running": {}},
        terminated("Error", code=1),
        terminated("Completed", code=0),
        waiting("CrashLoopBackOff", "back-off 10s"),
    ],
)
def test_a_container_that_is_being_created_or_ran_has_no_such_failure(state: dict[str, object]) -> None:
    assert creation_failure(restored(state), [IMAGE]) is None


def test_a_container_that_is_not_restored_is_none_of_ours() -> None:
    assert creation_failure(restored(waiting("CreateContainerError", OFF), name="logger"), [IMAGE]) is None


def test_after_two_nodes_in_vain_the_image_is_unusable() -> None:
    first = failure(restored(terminated("StartError", CRIU_FAILED)))
    assert unusable_image({"n1": first}) == ""
    second = msgspec.structs.replace(first, node="n2")
    said = unusable_image({"n2": second, "n1": first})
    assert said.startswith("the image is unusable: it was tried in vain on n1, n2; container trainer can't be created")


def test_nodes_that_are_not_set_up_say_nothing_against_the_image() -> None:
    off = failure(restored(waiting("CreateContainerError", OFF)))
    failed = failure(restored(terminated("StartError", CRIU_FAILED)))
    assert unusable_image({"n1": off, "n2": off, "n3": failed}) == ""


def test_a_base_image_is_there_however_its_command_ended() -> None:
    gone = "exec: /nothing: no such file or directory"
    root = waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")
    for state in (terminated("Completed", code=0), terminated("StartError", gone), root):
        assert has_base_images(restored(state, image=BASE))
        assert base_image_failure(restored(state, image=BASE)) == ""


def test_a_base_image_that_is_being_fetched_is_waited_for() -> None:
    pod = restored(waiting("ContainerCreating"), image=BASE)
    assert not has_base_images(pod)
    assert base_image_failure(pod) == ""
    assert not has_base_images(msgspec.convert({"metadata": {}}, Pod))


def test_a_base_image_that_can_not_be_fetched_asks_for_the_pods_own_secret() -> None:
    pod = restored(waiting("ErrImagePull", "authorization failed: no basic auth credentials"), image=BASE)
    assert not has_base_images(pod)
    said = base_image_failure(pod)
    assert said.startswith("the base image can't be brought to n1: ")
    assert said.endswith("the restored pod needs a pull secret for it")
