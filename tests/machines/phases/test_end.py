"""The phase End: nothing of a machine is left, and the object stays until that is so."""

from typing import Any

import pytest

from holdfast.machines.phases.step import (
    CancelTask,
    DropFinalizer,
    RemoveNode,
    ReportNothing,
    RevokeToken,
    StartTask,
)
from holdfast.machines.snapshot import Absent, CloudProblem
from holdfast.machines.work import Gone, MachineTask, Succeeded, TaskRunning
from holdfast.providers.errors import ProviderError
from tests.machines.observations import (
    ASKED,
    ENDING,
    JOINED,
    LAUNCHED,
    NAME,
    SERVING,
    Decided,
    at,
    condition,
    failed,
    node,
    pod,
    running,
    seen,
)

DELETE = StartTask(MachineTask.DELETE)
GONE = {MachineTask.DELETE: Succeeded(None)}
MISSING = CloudProblem("SecretMissing", "Secret ml/gcp of gcpCredentialsSecretRef does not exist: create it")


@pytest.mark.parametrize("status", [ASKED, LAUNCHED, JOINED, SERVING])
def test_a_deleted_object_gives_its_machine_back_first(status: dict[str, Any]) -> None:
    it = Decided(seen(status, deleted=True, node=node()), 50)
    assert it.effects == (DELETE,)
    assert it.status.phase == status["phase"], "nothing has to be written"
    assert Decided(seen(status, deleted=True, work={MachineTask.DELETE: running()}), 60).effects == ()


def test_when_the_machine_is_gone_node_pods_token_and_finalizer_go() -> None:
    there, lost = node(), pod("bert-r0-x", owner="Job", ready=False)
    pods = (lost, pod("driver"), pod("done", owner="Job", phase="Succeeded"))
    it = Decided(seen(SERVING, deleted=True, node=there, pods=pods, work=GONE), 60)
    assert it.effects == (RemoveNode(there, (lost,)), RevokeToken(), ReportNothing(), DropFinalizer())


def test_a_token_that_was_revoked_after_the_join_is_not_revoked_again() -> None:
    work = {**GONE, MachineTask.JOIN: Succeeded(None)}
    assert RevokeToken() not in Decided(seen(SERVING, deleted=True, work=work), 60).effects


@pytest.mark.parametrize("status", [None, {"phase": "Launch", "step": "SecretMissing"}])
def test_where_nothing_was_ever_launched_the_finalizer_comes_off(status: dict[str, Any] | None) -> None:
    """Even without a credential."""
    it = Decided(seen(status, deleted=True, problem=MISSING), 50)
    assert it.effects == (ReportNothing(), DropFinalizer())


def test_an_object_without_the_finalizer_is_not_touched() -> None:
    assert Decided(seen(SERVING, deleted=True, finalizers=("other",)), 50).effects == ()


def test_a_launch_that_is_under_way_is_waited_for_since_it_could_make_the_machine_later() -> None:
    it = Decided(seen(ASKED, deleted=True, work={MachineTask.LAUNCH: running()}), 50)
    assert (it.effects, it.rechecks_s) == ((), [600])
    it = Decided(seen(ASKED, deleted=True, work={MachineTask.LAUNCH: running()}), 600)
    assert it.effects == (CancelTask(MachineTask.LAUNCH),)


def test_a_launch_that_waits_for_its_turn_is_called_off() -> None:
    work = {MachineTask.LAUNCH: TaskRunning(since=at(0), is_queued=True)}
    it = Decided(seen(ASKED, deleted=True, work=work), 50)
    assert it.effects == (CancelTask(MachineTask.LAUNCH, if_queued=True),)


def test_a_join_that_is_under_way_ends_before_the_machine_does() -> None:
    it = Decided(seen(LAUNCHED, deleted=True, work={MachineTask.JOIN: running()}), 50)
    assert it.effects == (CancelTask(MachineTask.JOIN),)


def test_without_a_credential_the_object_stays_and_names_the_machine() -> None:
    it = Decided(seen(SERVING, deleted=True, problem=MISSING), 50)
    assert (it.effects, it.where) == ((), ("End", "Deleting"))
    assert it.message == (
        f"machine {NAME} in zone us-central1-a of project lab-project can't be deleted: {MISSING.message}"
    )


def test_a_delete_that_fails_is_said_and_tried_again() -> None:
    work = {MachineTask.DELETE: failed(ProviderError("503"), retry_s=70)}
    it = Decided(seen(SERVING, deleted=True, work=work), 60)
    assert (it.effects, it.rechecks_s) == ((), [70])
    assert it.message.endswith("can't be deleted: 503")
    assert Decided(seen(SERVING, deleted=True, work=work), 70).effects == (DELETE,)


def test_a_machine_that_did_not_join_is_deleted_and_its_object_stays_to_say_why() -> None:
    assert Decided(seen(ENDING), 50).effects == (DELETE,)
    it = Decided(seen(ENDING, work=GONE), 60)
    assert (it.where, it.status.state, it.message) == (("End", "Gone"), "TERMINATED", "Joined is False")
    assert it.before_status == (RevokeToken(), ReportNothing())
    assert it.effects[-1] == DropFinalizer()


def test_an_object_that_has_ended_does_nothing_until_it_is_deleted() -> None:
    ended = {**ENDING, "step": "Gone"}
    assert Decided(seen(ended, finalizers=()), 50).effects == ()
    assert Decided(seen(ended), 50).effects == (DropFinalizer(),), "a crash came before it"
    assert Decided(seen(ended, deleted=True), 50).effects == (DropFinalizer(),)


def test_a_machine_that_the_cloud_has_deleted_is_not_deleted_again() -> None:
    work = {MachineTask.CHECK: Succeeded(Gone(preempted=True))}
    it = Decided(seen({**ENDING, "conditions": (condition("Launched", "True"),)}, work=work), 50)
    assert (DELETE in it.effects, it.where) == (False, ("End", "Gone"))


def test_what_the_cloud_has_taken_back_it_deletes_itself_within_a_while() -> None:
    work = {MachineTask.CHECK: Succeeded(Gone(preempted=True, exists=True))}
    it = Decided(seen(ENDING, work=work), 50)
    assert (it.effects, it.where, it.rechecks_s) == ((), ("End", "Deleting"), [180])
    it = Decided(seen(ENDING, work=work, listed=Absent(9)), 60)
    assert (DELETE in it.effects, it.where) == (False, ("End", "Gone"))
    assert Decided(seen(ENDING, work=work), 180).effects == (DELETE,)


def test_what_is_deleted_and_taken_back_at_once_is_given_back_at_once() -> None:
    work = {MachineTask.CHECK: Succeeded(Gone(preempted=True, exists=True))}
    assert Decided(seen(SERVING, deleted=True, work=work), 50).effects == (DELETE,)


def test_pods_of_a_node_that_is_gone_already_are_ended_too() -> None:
    lost = pod("bert-r0-x", owner="Job", ready=False)
    it = Decided(seen(SERVING, deleted=True, pods=(lost,), work=GONE), 60)
    assert it.effects[0] == RemoveNode(None, (lost,))
    assert not any(isinstance(e, RemoveNode) for e in Decided(seen(SERVING, deleted=True, work=GONE), 60).effects)


def test_a_finalizer_that_somebody_took_off_is_not_taken_off_again() -> None:
    assert DropFinalizer() not in Decided(seen(ENDING, work=GONE, finalizers=()), 60).effects


def test_the_status_of_an_object_that_goes_is_not_touched() -> None:
    assert Decided(seen(SERVING, deleted=True, work=GONE), 60).where == ("Serve", "Serving")
