"""The phase GPUReady: node, DaemonSets and GPUs, and only then the taint."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.api.spotinstancevm import GPU
from holdfast.machines.phases.step import ReportReady, ReserveNode, StartTask, unusable
from holdfast.machines.work import Gone, MachineTask, Succeeded
from tests.machines.observations import JOINED, LAUNCHED, MACHINE, NAME, TEMPLATE, Decided, condition, node, pod, seen

FAILED = condition("GPUReady", "False", "GPUs")
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
    assert it.before_status == (ReserveNode(ready), ReportReady())
    assert it.message == f"Node {NAME} is ready with 2 GPUs"


def test_a_machine_without_gpus_needs_none() -> None:
    plain = structs.replace(TEMPLATE, spec=structs.replace(TEMPLATE.spec, gpu=None))
    it = Decided(seen(JOINED, node=node(gpus=0), template=plain), 100)
    assert it.status.phase == "Serve"
    assert it.message == f"Node {NAME} is ready"


def test_one_gpu_is_one() -> None:
    one = structs.replace(TEMPLATE, spec=structs.replace(TEMPLATE.spec, gpu=GPU(type="nvidia-tesla-t4", count=1)))
    assert Decided(seen(JOINED, node=node(gpus=1), template=one), 100).message == f"Node {NAME} is ready with 1 GPU"


def test_a_machine_that_does_not_get_ready_in_time_is_given_back_once_the_cloud_shows_it() -> None:
    it = Decided(seen(JOINED, node=node(gpus=0)), 660)
    assert it.effects == (StartTask(MachineTask.CHECK, "gpu"),)
    work = {MachineTask.CHECK: Succeeded(MACHINE, "gpu")}
    it = Decided(seen(JOINED, node=node(gpus=0), work=work), 661)
    assert (it.where, it.condition("GPUReady")) == (("End", "Deleting"), ("False", "GPUs"))
    assert "was not ready within 600 s: Node" in it.message
    assert unusable("GPUs", it.message) in it.before_status, "the next one is made elsewhere, or later"


def test_a_machine_that_got_ready_while_nobody_looked_is_not_late() -> None:
    assert Decided(seen(JOINED, node=node()), 9000).status.phase == "Serve"


def test_a_machine_that_is_given_back_is_not_reserved_however_ready_it_gets() -> None:
    late = {**JOINED, "phase": "End", "step": "Deleting", "conditions": (*JOINED["conditions"], FAILED)}
    for observed in (
        seen(late, node=node()),
        seen(JOINED, node=node(), deleted=True),
        seen(JOINED, node=node(), work={MachineTask.CHECK: Succeeded(Gone(preempted=True))}),
        seen(LAUNCHED, node=None),
    ):
        it = Decided(observed, 100)
        assert not any(isinstance(effect, ReserveNode) for effect in it.effects)
        assert it.condition("GPUReady")[0] != "True"


def test_a_machine_that_was_taken_back_is_not_asked_about_when_its_time_is_over() -> None:
    work = {MachineTask.CHECK: Succeeded(Gone(preempted=True))}
    it = Decided(seen(JOINED, node=node(gpus=0), work=work), 900)
    assert it.condition("Preempted") == ("True", "TakenBack")
    assert not any(isinstance(effect, StartTask) for effect in it.effects)


def test_pods_that_go_away_or_have_no_owner_are_not_waited_for() -> None:
    leaving = pod("leaving", ready=False)
    leaving = structs.replace(
        leaving, metadata=structs.replace(leaving.metadata, deletion_timestamp="2026-03-01T12:00:00Z")
    )
    bare = pod("bare", ready=False)
    bare = structs.replace(bare, metadata=structs.replace(bare.metadata, owner_references=()))
    assert Decided(seen(JOINED, node=node(), pods=(leaving, bare)), 100).status.phase == "Serve"


@pytest.mark.parametrize(("count", "text"), [(1, "driver-0;"), (3, "driver-0, driver-1, driver-2;")])
def test_few_pods_are_all_named(count: int, text: str) -> None:
    assert f"are not ready: {text}" in Decided(seen(JOINED, node=node(), pods=tuple(BUSY[:count])), 100).message


def test_the_kubelets_own_reason_is_passed_on() -> None:
    silent = node(ready=False)
    said = structs.replace(silent.status.conditions[0], message="the network plugin is not ready")
    silent = structs.replace(silent, status=structs.replace(silent.status, conditions=(said,)))
    assert "is not ready (the network plugin is not ready);" in Decided(seen(JOINED, node=silent), 100).message
    assert f"{NAME} is not ready;" in Decided(seen(JOINED, node=node(ready=False)), 100).message


def test_without_its_template_what_is_there_has_to_do() -> None:
    assert Decided(seen(JOINED, node=node(gpus=0), template=None), 100).status.phase == "Serve"
