"""An operator that dies between its answer and its write loses no epoch: the job ends as if nothing had happened."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.meta import Key
from holdfast.api.reports import ProgressReport
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.runtime.informer import Store
from holdfast.runtime.report_server import ReportingPod
from holdfast.trainingjob.decide.progress import apply_report
from holdfast.trainingjob.reports.authorization import reply_for_attempt
from holdfast.trainingjob.reports.inbox import Inbox
from tests.trainingjob.reports.reports import batch, ended
from tests.trainingjobs import at, training_job

JOB = Key("ml", "bert")
CALLER = ReportingPod(Key("ml", "pod"), "uid", JOB, attempt=0, index=0)
SPEC = {"hyperparameters": {"epochs": 12}, "successPolicy": {"earlyStoppingPatience": 3, "targetAccuracy": 0.95}}


class Operator:
    """What outlives it is the job's status; the inbox does not."""

    def __init__(self) -> None:
        self.jobs: Store[TrainingJob] = Store()
        self.jobs.put(training_job(SPEC, status={"state": "Running"}))
        self.start()

    def start(self) -> None:
        self.inbox = Inbox(now=lambda: at(0), clock=lambda: 0.0)

    @property
    def job(self) -> TrainingJob:
        found = self.jobs.get(JOB)
        assert found is not None
        return found

    def report(self, entries: list[ProgressReport], sequence: int) -> int:
        """Hand in what is not kept yet; how far it is kept by now."""
        if entries:
            self.inbox.put(JOB, batch(*entries, sequence=sequence))
        return reply_for_attempt(CALLER, self.job).recorded_epoch

    def write(self) -> None:
        letters, status = self.inbox.pending(JOB), self.job.status or TrainingJobStatus()
        for letter in letters:
            status = apply_report(self.job.spec, status, letter.batch, letter.received)
        self.jobs.put(structs.replace(self.job, status=status))
        self.inbox.acknowledge(JOB, letters)


def facts(operator: Operator) -> tuple[object, ...]:
    status = operator.job.status
    assert status is not None
    assert status.epochs is not None
    epochs = status.epochs
    return epochs.done, epochs.goal, epochs.best_loss, epochs.best_epoch, status.metrics, status.progress


_numbers = st.floats(0, 1)
_epochs = st.lists(st.tuples(_numbers, _numbers), min_size=1, max_size=12)


@given(_epochs, st.lists(st.sampled_from(["report", "write", "crash"]), max_size=30), st.integers(1, 4))
def test_no_epoch_is_lost_with_an_operator(
    numbers: list[tuple[float, float]], happenings: list[str], at_once: int
) -> None:
    trained = [ended(n, loss=loss, accuracy=accuracy) for n, (loss, accuracy) in enumerate(numbers, start=1)]
    undisturbed = Operator()
    undisturbed.report(trained, 1)
    undisturbed.write()

    operator, kept, known, sequence = Operator(), 0, 0, 0
    for happening in happenings:
        if happening == "report":
            known, sequence = known + at_once, sequence + 1
            kept = operator.report([entry for entry in trained[:known] if entry.epoch > kept], sequence)
        elif happening == "write":
            operator.write()
        else:
            operator.start()
    operator.report([entry for entry in trained if entry.epoch > kept], sequence + 1)
    operator.write()
    assert facts(operator) == facts(undisturbed)
