"""Restarts by failure class, and the GPU time that they have lost, from one status to the next."""

from typing import Any

import msgspec
from msgspec import structs

from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.trainingjob.lost_time import LostTime
from tests.trainingjob.test_waiting_metrics import condition
from tests.trainingjobs import at, stamp, training_job

JSON = dict[str, Any]
RUNNING = {"state": "Running", "conditions": [condition("Running", "True", 0)]}
LOST = {"state": "Restarting", "conditions": [condition("Running", "False", 600)]}
PREEMPTED = {**LOST, "restartCount": 1, "restarts": {"preemption": 1}}


class Written:
    """Statuses of one job, each after the one before it."""

    def __init__(self, *statuses: tuple[float, JSON], spec: JSON | None = None) -> None:
        self.lost = LostTime()
        self.job: TrainingJob = training_job(spec if spec is not None else {"gpusPerWorker": 4})
        self.write(*statuses)

    def write(self, *statuses: tuple[float, JSON]) -> None:
        for moment_s, body in statuses:
            status = msgspec.convert(body, TrainingJobStatus)
            self.lost.status_written(self.job, status, at(moment_s))
            self.job = structs.replace(self.job, status=status)

    def counts(self, name: str, *namespaces: str) -> dict[tuple[str, str], float]:
        families = {family.name: family for family in self.lost.collect(namespaces)}
        samples = families[f"trainingjob_{name}"].samples
        return {(each.labels["namespace"], each.labels["class"]): each.value for each in samples}

    @property
    def restarts(self) -> dict[tuple[str, str], float]:
        return self.counts("restarts")

    @property
    def gpu_seconds(self) -> dict[tuple[str, str], float]:
        return self.counts("lost_gpu_seconds")


def test_a_restart_costs_all_gpus_since_the_attempt_ran() -> None:
    written = Written((0, RUNNING), (600, PREEMPTED))
    assert written.restarts == {("ml", "preemption"): 1}
    assert written.gpu_seconds == {("ml", "preemption"): 600 * 2 * 4}


def test_what_was_saved_is_not_lost() -> None:
    saved = {"checkpoint": {"lastTime": stamp(500)}}
    assert Written((0, RUNNING), (600, {**PREEMPTED, **saved})).gpu_seconds == {("ml", "preemption"): 100 * 8}


def test_the_time_between_the_loss_and_the_restart_is_no_training() -> None:
    written = Written((0, RUNNING), (600, LOST), (7200, PREEMPTED))
    assert written.gpu_seconds == {("ml", "preemption"): 600 * 8}


def test_an_attempt_that_never_ran_loses_nothing() -> None:
    again = {**LOST, "restartCount": 2, "restarts": {"preemption": 1, "application": 1}}
    written = Written((0, RUNNING), (600, PREEMPTED), (9000, again))
    assert written.restarts == {("ml", "preemption"): 1, ("ml", "application"): 1}
    assert written.gpu_seconds == {("ml", "preemption"): 600 * 8, ("ml", "application"): 0}


def test_workers_that_come_back_by_themselves_have_lost_nothing() -> None:
    back = {"state": "Running", "conditions": [condition("Running", "True", 700)]}
    written = Written((0, RUNNING), (600, LOST), (700, back), (800, PREEMPTED))
    assert written.gpu_seconds == {("ml", "preemption"): 100 * 8}


def test_a_requested_restart_is_no_failure() -> None:
    written = Written((0, RUNNING), (600, {**LOST, "restartCount": 1}), (900, {**PREEMPTED, "restartCount": 2}))
    assert written.gpu_seconds == {("ml", "preemption"): 0}
    assert written.restarts == {("ml", "preemption"): 1}


def test_an_end_or_a_suspension_is_forgotten() -> None:
    suspended = {"state": "Suspended", "conditions": [condition("Running", "False", 600)]}
    written = Written((0, RUNNING), (600, suspended), (900, PREEMPTED))
    assert written.gpu_seconds == {("ml", "preemption"): 0}
    gone = Written((0, RUNNING), (600, LOST))
    gone.lost.forget(Key("ml", "bert"))
    gone.write((900, PREEMPTED))
    assert gone.gpu_seconds == {("ml", "preemption"): 0}


def test_a_status_that_is_written_again_counts_nothing_again() -> None:
    written = Written((0, RUNNING), (600, PREEMPTED), (601, {**PREEMPTED, "message": "still"}))
    assert written.restarts == {("ml", "preemption"): 1}


def test_a_job_without_gpus_loses_no_gpu_time() -> None:
    written = Written((0, RUNNING), (600, PREEMPTED), spec={"gpusPerWorker": 0})
    assert written.restarts == {("ml", "preemption"): 1}
    assert written.gpu_seconds == {("ml", "preemption"): 0}


def test_the_counts_of_a_namespace_begin_at_zero() -> None:
    expected = {("ml", each): 0 for each in ("preemption", "infrastructure", "outOfMemory", "hang", "application")}
    assert Written().counts("restarts", "ml") == expected
    assert Written().counts("lost_gpu_seconds", "ml") == expected
