"""A sidecar's termination message and the status → what was left unsaid, as a report."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.core.objects import Pod
from holdfast.api.reports import LARGEST_EPOCH, WorkerReport
from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.trainingjob.decide.progress import apply_report, termination_report
from holdfast.trainingjob.decide.snapshot import TrainingJobSnapshot
from tests.trainingjobs import at, stamp, training_job, worker

SAVED = "runs/attempt-0/checkpoint-epoch-5"
VOLUME = {"checkpoint": {"storage": {"type": "pvc"}}}
BUCKET = {"checkpoint": {"storage": {"type": "s3", "s3Bucket": "runs"}}}
KNOWN = {
    "state": "Running",
    "epochs": {"attempt": 0, "done": 4, "position": 4.5},
    "checkpoint": {"last": "runs/attempt-0/checkpoint-epoch-4", "lastEpoch": 4},
}


def ended(message: str, *, index: int = 0, name: str = "holdfast-sidecar", phase: str = "Succeeded") -> Pod:
    end = {"exitCode": 0, "message": message, "finishedAt": stamp(50)}
    return worker(index, {"phase": phase, "initContainerStatuses": [{"name": name, "state": {"terminated": end}}]})


def word(epoch: int = 5, step: int | None = None, *, attempt: int = 0, checkpoint: str = "", **more: Any) -> str:
    progress = {"epoch": epoch, "at": 1_790_000_000.0, **({"step": step, "steps": 10} if step is not None else {})}
    said = {"attempt": attempt, "checkpoint": checkpoint, "progress": {**progress, **more}}
    return msgspec.json.encode(said).decode()


def heard(*pods: Pod, status: dict[str, Any] = KNOWN, spec: dict[str, Any] = VOLUME) -> WorkerReport | None:
    return termination_report(TrainingJobSnapshot(job=training_job(spec, status=status), pods=pods))


def epochs(batch: WorkerReport | None) -> list[int]:
    return [entry.epoch for entry in batch.progress] if batch is not None else []


def test_what_is_further_than_the_status_is_told() -> None:
    told = heard(ended(word(5, checkpoint=SAVED)))
    assert told is not None
    assert (told.attempt, told.index, epochs(told)) == (0, 0, [5])
    assert [(entry.path, entry.epoch, entry.outcome) for entry in told.checkpoints] == [(SAVED, 5, "completed")]


def test_a_checkpoint_of_an_object_store_counts_as_uploaded() -> None:
    told = heard(ended(word(5, checkpoint=SAVED)), spec=BUCKET)
    assert told is not None
    assert [entry.outcome for entry in told.checkpoints] == ["uploaded"]


@pytest.mark.parametrize("checkpoint", ["", SAVED])
@pytest.mark.parametrize("step", [None, 3])
def test_it_is_written_as_of_now(checkpoint: str, step: int | None) -> None:
    job = training_job(VOLUME, status=KNOWN)
    told = heard(ended(word(6, step, checkpoint=checkpoint)))
    assert told is not None
    status = apply_report(job.spec, job.status or TrainingJobStatus(), told, at(100))
    assert status.epochs is not None
    assert status.epochs.position == (6 if step is None else 5.3)
    assert status.checkpoint is not None
    assert status.checkpoint.last_time == (stamp(100) if checkpoint else None)


def test_a_checkpoint_alone_is_told_as_of_now() -> None:
    job = training_job(VOLUME, status=KNOWN)
    told = heard(ended(msgspec.json.encode({"attempt": 0, "checkpoint": SAVED}).decode()))
    assert told is not None
    status = apply_report(job.spec, job.status or TrainingJobStatus(), told, at(100))
    assert status.checkpoint is not None
    assert (status.checkpoint.last, status.checkpoint.last_time) == (SAVED, stamp(100))
    assert (status.epochs, status.progress) == ((job.status or TrainingJobStatus()).epochs, None)


@pytest.mark.parametrize(
    "pod",
    [
        ended(word(4)),
        ended(word(5, 5)),
        ended(word(4, checkpoint="runs/attempt-0/checkpoint-epoch-4")),
        ended(word(4, checkpoint="runs/attempt-0/checkpoint-epoch-3")),
        ended(word(9, attempt=1)),
        ended(word(9), index=1),
        ended(word(9), name="another"),
        ended(word(9), phase="Running"),
        ended(""),
        worker(0, {"phase": "Failed"}),
    ],
    ids=[
        "the-same",
        "not-further",
        "saved-before",
        "saved-long-before",
        "of-another-attempt",
        "of-another-worker",
        "of-another-container",
        "not-ended",
        "silent",
        "without-a-sidecar",
    ],
)
def test_what_is_not_news_is_nothing(pod: Pod) -> None:
    assert heard(pod) is None


@pytest.mark.parametrize(
    "message",
    [
        "Traceback: no space left on device",
        "[]",
        "{}",
        "{",
        '{"attempt": -1}',
        '{"attempt": 0, "progress": {"epoch": -1, "at": 1}}',
        '{"attempt": 0, "progress": {"epoch": 1e99, "at": 1}}',
        '{"attempt": 0, "progress": {"epoch": 9, "at": NaN}}',
        word(LARGEST_EPOCH + 1),
        word(9, checkpoint="x" * 2049 + "/checkpoint-epoch-9"),
        word(9, metrics={"loss": 1e39}),
        "[" * 4000,
    ],
)
def test_what_is_no_word_is_nothing(message: str) -> None:
    assert heard(ended(message)) is None


@pytest.mark.parametrize(
    "path",
    [
        "checkpoint-epoch-5",
        "runs/checkpoint-epoch-",
        "runs/checkpoint-epoch-x",
        "runs/checkpoint-epoch-5/..",
        "runs/checkpoint-epoch-5\n",
        "runs\n/checkpoint-epoch-5",
        "runs/checkpoint-epoch-\u0665",
        f"runs/checkpoint-epoch-{LARGEST_EPOCH + 1}",
        "runs/checkpoint-epoch-" + "9" * 400,
    ],
)
def test_a_path_that_names_no_checkpoint_is_passed_over_and_the_rest_is_heard(path: str) -> None:
    told = heard(ended(word(9, checkpoint=path)))
    assert told is not None
    assert (epochs(told), told.checkpoints) == ([9], ())


def test_a_number_may_be_filled_up_with_zeros() -> None:
    told = heard(ended(word(9, checkpoint="runs/attempt-0/checkpoint-epoch-000000000007")))
    assert told is not None
    assert [entry.epoch for entry in told.checkpoints] == [7]


def test_the_first_word_of_an_attempt_may_be_its_last() -> None:
    status = {"state": "Running", "restartCount": 1, "epochs": KNOWN["epochs"]}
    assert epochs(heard(ended(word(2, attempt=1)), status=status)) == [2]


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_whatever_stands_there_does_no_harm(message: str) -> None:
    assert heard(ended(message)) is None


@given(st.integers(0, LARGEST_EPOCH), st.floats(0, 2.0**53), st.floats(-3.5e38, 3.5e38))
def test_whatever_fits_can_be_written(epoch: int, when: float, loss: float) -> None:
    message = word(epoch, checkpoint=f"a/checkpoint-epoch-{epoch % 10**9}", at=when, metrics={"loss": loss})
    job = training_job(VOLUME, status=KNOWN)
    told = heard(ended(message))
    if told is not None:
        status = apply_report(job.spec, job.status or TrainingJobStatus(), told, at(100))
        assert status.current_epoch == (epoch if epoch > 4 else None)


def test_a_checkpoint_within_an_epoch_is_none_of_the_whole_epoch() -> None:
    said = {"attempt": 0, "checkpoint": SAVED, "checkpointEpoch": 4}
    told = heard(ended(msgspec.json.encode(said).decode()))
    assert told is not None
    assert [(entry.path, entry.epoch) for entry in told.checkpoints] == [(SAVED, 4)]
    known = {**KNOWN, "checkpoint": {"last": SAVED, "lastEpoch": 4}}
    assert heard(ended(msgspec.json.encode(said).decode()), status=known) is None
