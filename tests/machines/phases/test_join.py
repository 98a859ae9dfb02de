"""The phase Join: whoever has the machine join, each step has its time, and a failed one is given back."""

import pytest

from holdfast.machines.joining import JoinFailed, JoinProgress, JoinStep
from holdfast.machines.phases.step import CancelTask, RevokeToken, StartTask, unusable
from holdfast.machines.work import Gone, MachineTask, Succeeded, TaskRunning, Work
from holdfast.providers.errors import ProviderError
from tests.machines.observations import LAUNCHED, MACHINE, NAME, Decided, at, failed, node, running, seen

JOIN = StartTask(MachineTask.JOIN)
FAILURE = JoinFailed(JoinStep.KUBEADM, "kubeadm join ended with exit status 1, and has said: no swap")


def progress(step: JoinStep, *, since_s: float, deadline_s: float) -> TaskRunning:
    return TaskRunning(
        since=at(0),
        progress=JoinProgress(step=step, deadline=at(deadline_s), message="doing something"),
        step_since=at(since_s),
    )


def test_a_launched_machine_is_had_to_join() -> None:
    it = Decided(seen(LAUNCHED), 1)
    assert (it.effects, it.where) == ((JOIN,), ("Join", "HostKey"))


def test_the_step_of_the_join_is_in_status_with_its_beginning_and_its_deadline() -> None:
    it = Decided(seen(LAUNCHED, work={MachineTask.JOIN: progress(JoinStep.KUBEADM, since_s=90, deadline_s=390)}), 95)
    assert (it.where, it.status.step_start_time) == (("Join", "Kubeadm"), "2026-03-01T12:01:30Z")
    assert it.condition("Joined") == ("False", "Kubeadm")
    assert it.message == "doing something; its time is over at 2026-03-01T12:06:30Z"
    assert it.effects == ()


@pytest.mark.parametrize("work", [{}, {MachineTask.JOIN: running()}, {MachineTask.JOIN: failed(FAILURE)}])
def test_a_node_of_the_machines_name_has_joined_whoever_saw_to_that(work: dict[MachineTask, Work]) -> None:
    it = Decided(seen(LAUNCHED, node=node(ready=False), work=work), 40)
    assert it.condition("Joined") == ("True", "NodeRegistered")
    assert (it.status.node_name, it.status.joined_cluster, it.status.phase) == (NAME, True, "GPUReady")
    assert JOIN not in it.effects


def test_the_token_of_a_machine_that_turned_up_by_itself_is_revoked() -> None:
    """An operator before this one may have made it. A join that is under way sees to that itself."""
    assert Decided(seen(LAUNCHED, node=node(ready=False)), 40).before_status == (RevokeToken(),)
    assert Decided(seen(LAUNCHED, node=node(ready=False), work={MachineTask.JOIN: running()}), 40).before_status == ()


def test_before_a_join_counts_as_failed_the_cloud_is_asked_about_the_machine() -> None:
    it = Decided(seen(LAUNCHED, work={MachineTask.JOIN: failed(FAILURE)}), 100)
    assert (it.where, it.effects) == (("Join", "HostKey"), (StartTask(MachineTask.CHECK, "join"),))
    asked: dict[MachineTask, Work] = {MachineTask.JOIN: failed(FAILURE), MachineTask.CHECK: running(cause="join")}
    assert Decided(seen(LAUNCHED, work=asked), 101).effects == ()


def test_a_machine_that_is_there_and_did_not_join_is_given_back() -> None:
    work: dict[MachineTask, Work] = {MachineTask.JOIN: failed(FAILURE), MachineTask.CHECK: Succeeded(MACHINE, "join")}
    it = Decided(seen(LAUNCHED, work=work), 102)
    assert (it.where, it.condition("Joined")) == (("End", "Deleting"), ("False", "Kubeadm"))
    assert it.message.endswith("step Kubeadm: kubeadm join ended with exit status 1, and has said: no swap")
    assert it.before_status == (unusable("Kubeadm", it.message),), "the next one is made elsewhere, or later"
    assert it.effects[1:] == (StartTask(MachineTask.DELETE),)


def test_a_machine_that_was_taken_back_meanwhile_did_not_fail_to_join() -> None:
    work: dict[MachineTask, Work] = {
        MachineTask.JOIN: failed(FAILURE),
        MachineTask.CHECK: Succeeded(Gone(preempted=True), "join"),
    }
    it = Decided(seen(LAUNCHED, work=work), 102)
    assert (it.status.phase, it.condition("Preempted")) == ("End", ("True", "TakenBack"))
    assert it.condition("Joined") == ("False", "HostKey"), "as it was"
    assert not any(isinstance(effect, StartTask) for effect in it.effects), "the cloud has answered"


def test_while_the_cloud_does_not_answer_nothing_is_decided() -> None:
    work: dict[MachineTask, Work] = {
        MachineTask.JOIN: failed(FAILURE),
        MachineTask.CHECK: failed(ProviderError("503"), retry_s=500, cause="join"),
    }
    it = Decided(seen(LAUNCHED, work=work), 400)
    assert (it.where, it.effects) == (("Join", "HostKey"), ())
    assert it.rechecks_s == [500]


def test_other_errors_of_the_join_are_tried_again() -> None:
    work: dict[MachineTask, Work] = {MachineTask.JOIN: failed(ProviderError("503"), retry_s=50)}
    assert Decided(seen(LAUNCHED, work=work), 40).effects == ()
    assert Decided(seen(LAUNCHED, work=work), 50).effects == (JOIN,)


def test_a_machine_that_nobody_hears_of_is_given_back_when_its_time_is_over() -> None:
    assert Decided(seen(LAUNCHED, work={MachineTask.JOIN: running()}), 299).effects == ()
    it = Decided(seen(LAUNCHED, work={MachineTask.JOIN: running()}), 300)
    assert it.effects == (StartTask(MachineTask.CHECK, "join"),)
    work: dict[MachineTask, Work] = {MachineTask.JOIN: running(), MachineTask.CHECK: Succeeded(MACHINE, "join")}
    it = Decided(seen(LAUNCHED, work=work), 301)
    assert (it.status.phase, it.condition("Joined")) == ("End", ("False", "HostKey"))
    assert it.effects[1:] == (CancelTask(MachineTask.JOIN),), "the machine is deleted when the join has ended"


def test_the_time_of_a_step_is_kept_by_whoever_joins() -> None:
    """It says what was missing; a moment later it is not waited for any more."""
    work: dict[MachineTask, Work] = {MachineTask.JOIN: progress(JoinStep.LOGIN, since_s=10, deadline_s=310)}
    assert Decided(seen(LAUNCHED, work=work), 339).effects == ()
    assert Decided(seen(LAUNCHED, work=work), 340).effects == (StartTask(MachineTask.CHECK, "join"),)


def test_a_join_that_waits_for_its_turn_has_not_failed() -> None:
    """Machines of others that never answer would have all that come after them given back."""
    queued = TaskRunning(since=at(0), is_queued=True)
    it = Decided(seen(LAUNCHED, work={MachineTask.JOIN: queued}), 4000)
    assert (it.where, it.effects) == (("Join", "HostKey"), ())
    assert "waits for its turn" in it.message


def test_an_operator_that_was_away_looks_first() -> None:
    assert Decided(seen(LAUNCHED), 4000).effects == (JOIN,)
    assert Decided(seen(LAUNCHED, work={MachineTask.JOIN: running(since_s=4000)}), 4010).effects == ()


def test_a_join_that_ended_well_waits_for_the_node_as_long_as_any_step() -> None:
    work: dict[MachineTask, Work] = {MachineTask.JOIN: Succeeded(None)}
    assert Decided(seen(LAUNCHED, work=work), 299).effects == ()
    assert Decided(seen(LAUNCHED, work=work), 300).effects == (StartTask(MachineTask.CHECK, "join"),)


def test_what_keeps_a_join_from_beginning_is_said_and_has_its_time() -> None:
    work: dict[MachineTask, Work] = {MachineTask.JOIN: failed(ProviderError("the cloud answers 503"), retry_s=999)}
    it = Decided(seen(LAUNCHED, work=work), 40)
    assert it.message.endswith("can't be logged in to: the cloud answers 503")
    asked: dict[MachineTask, Work] = {**work, MachineTask.CHECK: Succeeded(MACHINE, "join")}
    it = Decided(seen(LAUNCHED, work=asked), 300)
    assert (it.status.phase, "the cloud answers 503" in it.message) == ("End", True)
