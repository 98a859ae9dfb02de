"""What worker 0's sidecar left in its termination message: what it could not report before it ended."""

import re

import msgspec

from holdfast.api.builtin import Pod
from holdfast.api.trainingjob import CheckpointStatus, EpochProgress
from holdfast.planning.trainingjob.classes import SIDECAR
from holdfast.planning.trainingjob.loss import index_of
from holdfast.planning.trainingjob.observed import Observed
from holdfast.planning.trainingjob.progress import REPORTING_WORKER
from holdfast.planning.trainingjob.saved import durable_outcome
from holdfast.reports.wire import Checkpoint, TerminationReport, WorkerReport

_CHECKPOINT = re.compile(r"[^\x00-\x1f\x7f]*/checkpoint-epoch-(0*[0-9]{1,9})")


def termination_report(observed: Observed) -> WorkerReport | None:
    """As a report; None when there is nothing in it that the status does not tell already."""
    pod = next((pod for pod in observed.pods if index_of(pod) == REPORTING_WORKER and pod.is_finished), None)
    word = _read(pod) if pod is not None else None
    if word is None or word.attempt != observed.status.restart_count:
        return None
    progress = word.progress if _is_further(word, observed.status.epochs) else None
    checkpoint = _newer(observed, word)
    if progress is None and checkpoint is None:
        return None
    return WorkerReport(
        job=observed.job.metadata.name,
        namespace=observed.job.metadata.namespace,
        uid=observed.job.metadata.uid,
        attempt=word.attempt,
        index=REPORTING_WORKER,
        run="last word",
        sequence=2,
        sent_at=_at(word),
        progress=(progress,) if progress is not None else (),
        checkpoints=(checkpoint,) if checkpoint is not None else (),
    )


def _read(pod: Pod) -> TerminationReport | None:
    ends = (each.state.terminated for each in pod.status.init_container_statuses if each.name == SIDECAR)
    end = next(ends, None)
    try:
        return msgspec.json.decode(end.message, type=TerminationReport) if end is not None and end.message else None
    except (msgspec.MsgspecError, RecursionError):
        return None  # the last lines of its log, where it died before it could say anything


def _is_further(word: TerminationReport, epochs: EpochProgress | None) -> bool:
    if word.progress is None:
        return False
    told = epochs.position if epochs is not None and epochs.attempt == word.attempt else -1.0
    return word.progress.position > told


def _newer(observed: Observed, word: TerminationReport) -> Checkpoint | None:
    match = _CHECKPOINT.fullmatch(word.checkpoint)
    known = observed.status.checkpoint or CheckpointStatus()
    if match is None:
        return None
    epoch = word.checkpoint_epoch if word.checkpoint_epoch is not None else int(match[1])
    last_epoch = -1 if known.last_epoch is None else known.last_epoch
    if epoch < last_epoch or (epoch, word.checkpoint) == (last_epoch, known.last):
        return None
    return Checkpoint(path=word.checkpoint, epoch=epoch, outcome=durable_outcome(observed.job.spec), at=_at(word))


def _at(word: TerminationReport) -> float:
    """All of it is as old as its progress, which is the last that was told."""
    return word.progress.at if word.progress is not None else 0.0
