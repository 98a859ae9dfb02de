"""The phase GPUReady: node, DaemonSets and GPUs, and only then the taint."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.machines.phases.step import ReserveNode, StartTask
from holdfast.machines.work import Succeeded, Task
from tests.machines.observations import JOINED, MACHINE, NAME, TEMPLATE, Decided, node, pod, seen

BUSY = [pod(f"driver-{number}", ready=False) for number in range(5)]


@pytest.mark.parametrize(
    ("fields", "step", "text"),
    [
        ({"node": node(ready=False)}, "NodeReady", f"Node {NAME} is not ready"),
        (
            {"node": node(), "pods": tuple(BUSY)},
            "DaemonSets",
            "DaemonSet pods on the node are not ready: driver-0, driver-1, driver-2 and 2 more",
        ),
        ({"node": node(gpus=1)}, "GPUs", f"Node {NAME} offers 1 nvidia.com/gpu of 2"),
        ({"node": node(gpus="soon")}, "GPUs", f"Node {NAME} offers 0 nvidia.com/gpu of 2"),
    ],
)
def test_what_is_missing_is_said_with_its_deadline(fields: dict[str, Any], step: str, text: str) -> None:
    it = Decided(seen(JOINED, **fields), 100)
    assert (it.where, it.condition("GPUReady")) == (("GPUReady", step), ("False", step))
    assert it.message.startswith(f"waiting: {text}")
    assert it.message.endswith("its time is over at 2026-03-01T12:11:00Z"), "ten minutes after it joined"
    assert it.rechecks_s == [660]
    assert not any(isinstance(effect, ReserveNode) for effect in it.effects), "no taint before the GPUs are there"


def test_a_machine_with_its_gpus_is_reserved_and_serves() -> None:
    pods = (pod("driver"), pod("done", phase="Succeeded", ready=False), pod("other", owner="ReplicaSet", ready=False))
    ready = node()
    it = Decided(seen(JOINED, node=ready, pods=pods), 100)
    assert (it.where, it.condition("GPUReady")) == (("Serve", "Serving"), ("True", "Ready"))
    assert it.before_status == (ReserveNode(ready),)
    assert it.message == f"Node {NAME} is ready with 2 GPUs"


def test_a_machine_without_gpus_needs_none() -> None:
    plain = structs.replace(TEMPLATE, spec=structs.replace(TEMPLATE.spec, gpu=None))
    assert Decided(seen(JOINED, node=node(gpus=0), template=plain), 100).status.phase == "Serve"


def test_a_machine_that_does_not_get_ready_in_time_is_given_back_once_the_cloud_shows_it() -> None:
    it = Decided(seen(JOINED, node=node(gpus=0)), 660)
    assert it.effects == (StartTask(Task.CHECK, "gpu"),)
    work = {Task.CHECK: Succeeded(MACHINE, "gpu")}
    it = Decided(seen(JOINED, node=node(gpus=0), work=work), 661)
    assert (it.where, it.condition("GPUReady")) == (("End", "Deleting"), ("False", "GPUs"))
    assert "was not ready within 600 s: Node" in it.message


def test_a_machine_that_got_ready_while_nobody_looked_is_not_late() -> None:
    assert Decided(seen(JOINED, node=node()), 9000).status.phase == "Serve"
