"""The phase Serve: who says that a machine is taken back, and what is asked before it is believed."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.api.core.selectors import Taint
from holdfast.machines.phases.step import DropFinalizer, RemoveNode, ReportTakenBack, StartTask
from holdfast.machines.snapshot import Absent, CloudProblem, Listed, MachineSnapshot
from holdfast.machines.work import Gone, MachineTask, Succeeded
from holdfast.pods.failure import PREEMPTED
from holdfast.providers.errors import ProviderError
from tests.machines.observations import (
    JOINED,
    LAUNCHED,
    MACHINE,
    NAME,
    SERVING,
    Decided,
    condition,
    failed,
    node,
    running,
    seen,
)

NOTICED = {
    **SERVING,
    "preemption_notice": "2026-03-01T12:01:39Z",
    "conditions": (*SERVING["conditions"], condition("Preempted", "True", "PreemptionNotice")),
}


def serving(status: dict[str, Any] | None = None, **fields: Any) -> MachineSnapshot:
    return seen(status or SERVING, **{"node": node(), "listed": Listed(MACHINE, 1), **fields})


def check(value: Any, cause: str = "") -> dict[MachineTask, Any]:
    return {MachineTask.CHECK: Succeeded(value, cause)}


def test_a_machine_that_is_well_is_left_alone() -> None:
    it = Decided(serving(), 500)
    assert (it.effects, it.where, it.rechecks_s) == ((), ("Serve", "Serving"), [])


def test_the_mark_of_the_node_is_believed_at_once_and_the_machine_is_kept_for_a_last_save() -> None:
    it = Decided(serving(node=node(marked="Google takes this node back at 12:02")), 500)
    assert (it.status.phase, it.condition("Preempted")) == ("Serve", ("True", "PreemptionNotice"))
    assert it.status.preemption_notice == "2026-03-01T12:01:39Z"
    assert it.message == "Google takes this node back at 12:02"
    assert it.effects == (ReportTakenBack(),)


def test_a_notice_is_told_once() -> None:
    assert Decided(serving(NOTICED, node=node(marked="soon")), 500).effects == ()


def test_a_marked_machine_that_its_job_gives_back_first_was_preempted_too() -> None:
    it = Decided(serving(node=node(marked="soon"), deleted=True), 500)
    assert it.condition("Preempted") == ("True", "PreemptionNotice")
    assert ReportTakenBack() in it.effects
    again = Decided(serving(NOTICED, node=node(marked="soon"), deleted=True), 500)
    assert ReportTakenBack() not in again.effects


def test_a_notice_that_is_withdrawn_is_no_preemption() -> None:
    it = Decided(serving(NOTICED), 500)
    assert (it.condition("Preempted"), it.status.preemption_notice) == (("False", "NoticeWithdrawn"), None)
    assert it.status.phase == "Serve"


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"listed": Absent(4)}, "missing in list 4"),
        ({"listed": Listed(structs.replace(MACHINE, state="STOPPING"), 5)}, "STOPPING in list 5"),
        ({"listed": Listed(structs.replace(MACHINE, state="TERMINATED"), 6)}, "TERMINATED in list 6"),
        ({"node": node(ready=False, since_s=400)}, "not ready since 2026-03-01T12:06:40Z"),
        ({"node": None}, "its Node is gone"),
    ],
)
def test_a_doubt_has_the_cloud_asked_once(fields: dict[str, Any], cause: str) -> None:
    ask = StartTask(MachineTask.CHECK, cause)
    assert ask in Decided(serving(**fields), 500).effects
    assert ask not in Decided(serving(**fields, work={MachineTask.CHECK: running(cause=cause)}), 500).effects
    if fields.get("node", node()) is not None:
        answered = Decided(serving(**fields, work=check(MACHINE, cause)), 500)
        assert (ask in answered.effects, answered.status.phase) == (False, "Serve"), "the machine runs"


def test_a_silent_node_of_a_machine_that_runs_is_no_preemption() -> None:
    cause = "not ready since 2026-03-01T12:06:40Z"
    silent = node(ready=False, since_s=400)
    it = Decided(serving(node=silent, work=check(MACHINE, cause)), 500)
    assert (it.status.phase, it.condition("Preempted"), it.effects) == ("Serve", ("False", "MachineRuns"), ())


def test_a_node_that_falls_silent_after_its_notice_is_no_news() -> None:
    assert Decided(serving(NOTICED, node=node(ready=False, marked="soon")), 500).effects == ()
    gone = Decided(serving(NOTICED, node=node(ready=False, marked="soon"), listed=Absent(4)), 500)
    assert gone.effects == (StartTask(MachineTask.CHECK, "missing in list 4"),)


def test_a_later_doubt_is_asked_about_again() -> None:
    it = Decided(serving(listed=Absent(5), work=check(MACHINE, "missing in list 4")), 500)
    assert it.effects == (StartTask(MachineTask.CHECK, "missing in list 5"),)


def test_what_no_list_tells_is_no_doubt() -> None:
    assert Decided(serving(listed=None), 500).effects == ()


@pytest.mark.parametrize("status", [LAUNCHED, JOINED, SERVING])
def test_a_machine_that_the_cloud_took_back_has_ended_whatever_it_was_doing(status: dict[str, Any]) -> None:
    """All that is left goes in the same pass: Node and pods, then the finalizer."""
    joined = node() if status is not LAUNCHED else None
    it = Decided(seen(status, node=joined, listed=Absent(4), work=check(Gone(preempted=True))), 500)
    assert (it.where, it.condition("Preempted")) == (("End", "Gone"), ("True", "TakenBack"))
    assert it.status.state == "TERMINATED"
    assert ReportTakenBack() in it.effects
    assert any(isinstance(effect, RemoveNode) for effect in it.effects) == (joined is not None)
    assert it.effects[-1] == DropFinalizer()


def test_a_machine_that_goes_after_its_notice_is_counted_once() -> None:
    it = Decided(seen(NOTICED, node=node(marked="soon"), work=check(Gone(preempted=True))), 500)
    assert (it.where, it.condition("Preempted")) == (("End", "Gone"), ("True", "TakenBack"))
    assert ReportTakenBack() not in it.effects


@pytest.mark.parametrize(
    ("gone", "reason", "step"),
    [
        (Gone(preempted=False), "MachineDeleted", "Gone"),
        (Gone(preempted=False, exists=True), "MachineStopped", "Deleting"),
    ],
)
def test_what_somebody_else_did_is_no_preemption(gone: Gone, reason: str, step: str) -> None:
    it = Decided(serving(listed=Absent(4), work=check(gone)), 500)
    assert (it.where, it.condition("Preempted")) == (("End", step), ("False", reason))
    assert (StartTask(MachineTask.DELETE) in it.effects) == gone.exists


def test_a_machine_whose_node_was_deleted_is_given_back() -> None:
    it = Decided(serving(node=None, work=check(MACHINE, "its Node is gone")), 500)
    assert (it.where, it.condition("Joined")) == (("End", "Deleting"), ("False", "NodeDeleted"))
    assert it.effects[-1] == StartTask(MachineTask.DELETE)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"silent_cloud": "no list of machines since 12:00: 503"}, "no list of machines since 12:00: 503"),
        ({"problem": CloudProblem("SecretMissing", "Secret ml/gcp is gone")}, "Secret ml/gcp is gone"),
    ],
)
def test_a_cloud_that_can_not_be_asked_is_said_and_nothing_else_follows(fields: dict[str, Any], text: str) -> None:
    it = Decided(serving(listed=None, **fields), 500)
    assert (it.where, it.effects) == (("Serve", "Serving"), ())
    assert it.message.startswith(f"nobody can tell whether machine {NAME} in zone us-central1-a of project lab-project")
    assert it.message.endswith(text)


def test_a_check_that_fails_decides_nothing_and_is_tried_again() -> None:
    work = {MachineTask.CHECK: failed(ProviderError("503"), retry_s=510, cause="missing in list 4")}
    assert Decided(serving(listed=Absent(4), work=work), 500).effects == ()
    assert Decided(serving(listed=Absent(4), work=work), 510).effects == (
        StartTask(MachineTask.CHECK, "missing in list 4"),
    )


def test_a_mark_without_a_condition_is_a_notice_too() -> None:
    """Other agents set a taint alone."""
    marked = node()
    taints = (*marked.spec.taints, Taint(key=PREEMPTED, effect="NoSchedule"))
    marked = structs.replace(marked, spec=structs.replace(marked.spec, taints=taints))
    it = Decided(serving(node=marked), 500)
    assert it.condition("Preempted") == ("True", "PreemptionNotice")
    assert it.status.preemption_notice == "2026-03-01T12:08:20Z", "now"
    assert it.message == f"Node {NAME} is marked: the cloud takes it back"


@pytest.mark.parametrize(
    ("gone", "text"), [(Gone(False), " was deleted,"), (Gone(False, exists=True), " was stopped,")]
)
def test_the_message_says_what_somebody_else_did(gone: Gone, text: str) -> None:
    assert text in Decided(serving(work=check(gone)), 500).message


def test_what_the_cloud_shows_of_the_machine_is_in_status() -> None:
    moved = structs.replace(MACHINE, state="STAGING", external_ip="192.0.2.9")
    it = Decided(serving(listed=Listed(moved, 1)), 500)
    assert (it.status.state, it.status.external_ip, it.status.internal_ip) == ("STAGING", "192.0.2.9", "10.0.0.7")
    it = Decided(serving(listed=None, work=check(moved)), 500)
    assert it.status.external_ip == "192.0.2.9"
    unknown = structs.replace(MACHINE, state=None)
    assert Decided(serving(listed=Listed(unknown, 1)), 500).status.state == "RUNNING", "an unknown one changes nothing"
