"""The phase Launch: what is asked of the cloud, what its answers mean, and what is waited for."""

from typing import Any

import pytest

from holdfast.machines.joining import CannotJoin
from holdfast.machines.phases.step import (
    AddFinalizer,
    CancelTask,
    DropFinalizer,
    ReportLaunched,
    ReportRefused,
    ReportTakenBack,
    StartTask,
    unusable,
)
from holdfast.machines.snapshot import CloudProblem
from holdfast.machines.work import MachineTask, Succeeded, TaskRunning, Work
from holdfast.providers.errors import (
    CloudUnauthorized,
    InvalidMachine,
    MachineEnded,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Stockout,
)
from tests.machines.observations import (
    ASKED,
    LAUNCHED,
    MACHINE,
    NAME,
    PROJECT,
    ZONE,
    Decided,
    at,
    condition,
    failed,
    running,
    seen,
)

LAUNCH = StartTask(MachineTask.LAUNCH)


def test_before_the_cloud_is_asked_the_object_holds_all_that_finds_the_machine() -> None:
    it = Decided(seen(finalizers=()), 0)
    assert it.before_status == (AddFinalizer(),)
    assert it.effects == (AddFinalizer(), LAUNCH), "asked after the status is written"
    assert (it.status.instance_name, it.status.zone, it.status.project) == (NAME, ZONE, PROJECT)
    assert (it.where, it.condition("Launched")) == (("Launch", "Insert"), ("False", "Insert"))


def test_the_cloud_is_asked_again_after_a_restart() -> None:
    assert Decided(seen(ASKED), 30).effects == (LAUNCH,)


def test_a_finalizer_that_is_there_is_not_written_again() -> None:
    assert Decided(seen(), 0).effects == (LAUNCH,)


def test_while_the_cloud_is_asked_nothing_is_done() -> None:
    it = Decided(seen(ASKED, work={MachineTask.LAUNCH: running()}), 30)
    assert (it.effects, it.where, it.rechecks_s) == ((), ("Launch", "Insert"), [600])


def test_an_accepted_machine_is_written_down_and_joins() -> None:
    it = Decided(seen(ASKED, work={MachineTask.LAUNCH: Succeeded(MACHINE)}), 30)
    assert it.where == ("Join", "HostKey")
    assert it.condition("Launched") == ("True", "Accepted")
    assert (it.status.instance_id, it.status.state) == ("7", "RUNNING")
    assert (it.status.internal_ip, it.status.external_ip) == ("10.0.0.7", "192.0.2.7")
    assert it.effects == (ReportLaunched(), StartTask(MachineTask.JOIN))


def test_a_launched_machine_is_never_asked_for_again() -> None:
    it = Decided(seen(LAUNCHED, work={MachineTask.JOIN: running()}), 30)
    assert LAUNCH not in it.effects


@pytest.mark.parametrize(
    ("error", "reason", "scope"),
    [
        (Stockout("no T4 to spare"), "Stockout", "zone"),
        (QuotaExceeded("quota NVIDIA_T4_GPUS is 0", quota="NVIDIA_T4_GPUS"), "QuotaExceeded", "region"),
        (QuotaExceeded("quota GPUS_ALL_REGIONS is 0", scope="global"), "QuotaExceeded", "global"),
        (InvalidMachine("no such image", field="vmImage"), "Invalid", "template"),
        (InvalidMachine("no such machine type", field="gcp.machineType", scope="zone"), "Invalid", "template-zone"),
    ],
)
def test_a_refusal_ends_the_object_at_once_and_pools_are_told(error: Exception, reason: str, scope: str) -> None:
    it = Decided(seen(ASKED, work={MachineTask.LAUNCH: failed(error)}), 30)
    assert (it.where, it.condition("Launched")) == (("End", "Gone"), ("False", reason))
    assert str(error) in it.message
    told = [effect.refusal for effect in it.effects if isinstance(effect, ReportRefused)]
    assert [(each.scope, each.reason, each.said) for each in told] == [(scope, reason, str(error))]
    assert StartTask(MachineTask.DELETE) not in it.effects, "nothing was made"
    assert it.effects[-1] == DropFinalizer()


@pytest.mark.parametrize(
    ("preempted", "expected"), [(True, ("True", "TakenBack")), (False, ("False", "MachineDeleted"))]
)
def test_a_machine_that_ended_before_it_was_known_is_not_made_again(preempted: bool, expected: tuple[str, str]) -> None:
    error = MachineEnded("made and gone", preempted=preempted)
    it = Decided(seen(ASKED, work={MachineTask.LAUNCH: failed(error)}), 30)
    assert (it.status.phase, it.condition("Launched")[0], it.condition("Preempted")) == ("End", "True", expected)
    told = ReportTakenBack() if preempted else unusable("MachineDeleted", it.message)
    assert told in it.before_status, "an order that always ends like this must not be repeated at once"
    assert LAUNCH not in it.effects


@pytest.mark.parametrize("error", [ProviderError("503"), RateLimited("slow down", retry_after_s=5)])
def test_a_passing_fault_is_tried_again_when_its_time_has_come(error: Exception) -> None:
    early = Decided(seen(ASKED, work={MachineTask.LAUNCH: failed(error, retry_s=40)}), 30)
    assert (early.effects, early.where, early.rechecks_s) == ((), ("Launch", "Insert"), [40, 600])
    assert str(error) in early.message
    late = Decided(seen(ASKED, work={MachineTask.LAUNCH: failed(error, retry_s=40)}), 40)
    assert late.effects == (LAUNCH,)


def test_a_machine_that_is_not_accepted_in_time_is_given_back() -> None:
    """It may have been made all the same."""
    it = Decided(seen(ASKED, work={MachineTask.LAUNCH: failed(ProviderError("503"), retry_s=999)}), 600)
    assert (it.where, it.condition("Launched")) == (("End", "Deleting"), ("False", "TimedOut"))
    assert "within 600 s: 503" in it.message
    assert it.effects == (unusable("TimedOut", it.message), StartTask(MachineTask.DELETE))


def test_a_try_that_failed_is_told_from_one_that_takes_its_time() -> None:
    it = Decided(seen(ASKED, work={MachineTask.LAUNCH: failed(ProviderError("503"), retry_s=40)}), 30)
    assert (it.where, it.condition("Launched")) == (("Launch", "Insert"), ("False", "Retrying"))
    assert it.message.endswith(": 503")


def test_a_call_that_hangs_is_called_off_at_the_deadline() -> None:
    it = Decided(seen(ASKED, work={MachineTask.LAUNCH: running()}), 600)
    assert (it.status.phase, it.effects[1:]) == ("End", (CancelTask(MachineTask.LAUNCH),))


def test_a_launch_that_waits_for_its_turn_is_not_late() -> None:
    it = Decided(seen(ASKED, work={MachineTask.LAUNCH: TaskRunning(since=at(0), is_queued=True)}), 4000)
    assert (it.where, it.effects) == (("Launch", "Insert"), ())


def test_an_operator_that_was_away_looks_first() -> None:
    assert Decided(seen(ASKED), 4000).effects == (LAUNCH,)
    it = Decided(seen(ASKED, work={MachineTask.LAUNCH: running(since_s=4000)}), 4010)
    assert (it.where, it.effects) == (("Launch", "Insert"), ())


@pytest.mark.parametrize(
    "problem",
    [
        CloudProblem("SecretMissing", "Secret ml/gcp of gcpCredentialsSecretRef does not exist: create it"),
        CloudProblem("CredentialInvalid", "credentials.json is not JSON"),
    ],
)
def test_without_a_credential_nothing_is_begun_and_nothing_is_given_up(problem: CloudProblem) -> None:
    for now_s in (0, 100_000):
        it = Decided(seen(problem=problem), now_s)
        assert it.effects == ()
        assert (it.where, it.status.instance_name) == (("Launch", problem.reason), None)
        assert (it.condition("Launched"), it.message) == (("False", problem.reason), problem.message)


@pytest.mark.parametrize(
    ("error", "reason", "rechecks_s"),
    [
        (CloudUnauthorized("the key was revoked"), "Unauthorized", [70]),
        (CannotJoin("SecretMissing", "no key"), "SecretMissing", [70, 600]),
    ],
)
def test_what_a_person_has_to_mend_is_waited_for_and_tried_from_time_to_time(
    error: Exception, reason: str, rechecks_s: list[float]
) -> None:
    it = Decided(seen(ASKED, work={MachineTask.LAUNCH: failed(error, retry_s=70)}), 60)
    assert (it.where, it.condition("Launched"), it.message) == (("Launch", reason), ("False", reason), str(error))
    assert (it.effects, it.rechecks_s) == ((), rechecks_s)
    assert Decided(seen(ASKED, work={MachineTask.LAUNCH: failed(error, retry_s=70)}), 70).effects == (LAUNCH,)


def test_a_revoked_key_is_waited_for_without_a_deadline_since_nothing_can_be_deleted_with_it() -> None:
    unauthorized = failed(CloudUnauthorized("the key was revoked"), retry_s=200_000)
    it = Decided(seen(ASKED, work={MachineTask.LAUNCH: unauthorized}), 100_000)
    assert (it.where, it.effects) == (("Launch", "Unauthorized"), ())


NO_KEY = CannotJoin("SecretMissing", "no key")
LACKS_KEY = {**ASKED, "step": "SecretMissing", "conditions": (condition("Launched", "False", "SecretMissing"),)}


@pytest.mark.parametrize("status", [ASKED, LACKS_KEY])
@pytest.mark.parametrize(
    "work", [failed(NO_KEY, retry_s=650), TaskRunning(since=at(560), last_error=NO_KEY)], ids=["failed", "tried again"]
)
def test_a_machine_that_may_exist_is_not_kept_for_ever_for_a_secret_of_its_join(
    status: dict[str, Any], work: Work
) -> None:
    """The answer to the insert may have been lost before the Secret was."""
    assert Decided(seen(status, work={MachineTask.LAUNCH: work}), 599).where == ("Launch", "SecretMissing")
    it = Decided(seen(status, work={MachineTask.LAUNCH: work}), 600)
    assert (it.where, it.condition("Launched")) == (("End", "Deleting"), ("False", "TimedOut"))
    assert it.message == (f"machine {NAME} in zone {ZONE} of project {PROJECT} was not accepted within 600 s: no key")
    goes = CancelTask(MachineTask.LAUNCH) if isinstance(work, TaskRunning) else StartTask(MachineTask.DELETE)
    assert it.effects == (goes,), "the zone does not rest for it"


def test_a_secret_that_came_late_gets_a_try_before_the_machine_is_given_up() -> None:
    it = Decided(seen(LACKS_KEY, work={MachineTask.LAUNCH: TaskRunning(since=at(590), last_error=NO_KEY)}), 600)
    assert (it.where, it.effects) == (("Launch", "SecretMissing"), ())
    it = Decided(seen(LACKS_KEY, work={MachineTask.LAUNCH: Succeeded(MACHINE)}), 601)
    assert it.where == ("Join", "HostKey")


def test_a_template_may_come_later_and_is_not_waited_for_for_ever() -> None:
    it = Decided(seen(template=None), 0)
    assert (it.where, it.effects) == (("Launch", "Template"), ())
    assert it.message == "there is no SpotInstanceVM t4 to make a machine from: create it"
    waiting = {"phase": "Launch", "step": "Template", "step_start_time": "2026-03-01T12:00:00Z"}
    it = Decided(seen(waiting, template=None), 600)
    assert (it.where, it.condition("Launched")) == (("End", "Gone"), ("False", "TemplateMissing"))


def test_a_template_that_vanishes_while_the_cloud_is_asked_changes_nothing() -> None:
    it = Decided(seen(ASKED, template=None, work={MachineTask.LAUNCH: running()}), 10)
    assert (it.where, it.effects) == (("Launch", "Insert"), ())


@pytest.mark.parametrize("reason", ["TimedOut", "Stockout", "TemplateMissing"])
def test_an_object_that_ends_is_never_asked_for_again(reason: str) -> None:
    ended = {**ASKED, "phase": "End", "step": "Deleting", "conditions": (condition("Launched", "False", reason),)}
    assert LAUNCH not in Decided(seen(ended), 700).effects


def test_without_trouble_the_message_says_what_is_waited_for() -> None:
    it = Decided(seen(), 0)
    assert it.message == f"waiting for the cloud to accept machine {NAME} in zone {ZONE} of project {PROJECT}"
    it = Decided(seen(ASKED, work={MachineTask.LAUNCH: running()}), 600)
    assert it.message == f"machine {NAME} in zone {ZONE} of project {PROJECT} was not accepted within 600 s"


def test_only_a_refusal_proves_that_nothing_was_made() -> None:
    timed_out = {
        **ASKED,
        "phase": "End",
        "step": "Deleting",
        "conditions": (condition("Launched", "False", "TimedOut"),),
    }
    assert Decided(seen(timed_out), 700).effects == (StartTask(MachineTask.DELETE),)
    refused = {**timed_out, "conditions": (condition("Launched", "False", "Stockout"),)}
    it = Decided(seen(refused), 700)
    assert (it.where, it.status.state, StartTask(MachineTask.DELETE) in it.effects) == (("End", "Gone"), None, False)
