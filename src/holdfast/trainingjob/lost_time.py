"""Counts restarts by failure class, and the GPU time that they have lost: all since the last checkpoint."""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily

from holdfast.api.meta import Key, is_true
from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_status import CheckpointStatus, TrainingJobStatus
from holdfast.pods.failure import CLASSES
from holdfast.runtime.ages import unsaved_seconds
from holdfast.trainingjob.objects.resources import gpus_per_worker
from holdfast.trainingjob.waiting_metrics import failed_attempts

# By namespace and class.
Tally: TypeAlias = dict[tuple[str, str], int]
BY_CLASS = ("namespace", "class")


class LostTime:
    """What an attempt had not saved is known when its workers stop to run, which may be before it is given up."""

    def __init__(self) -> None:
        self._restarts: Counter[tuple[str, str]] = Counter()
        self._gpu_seconds: Counter[tuple[str, str]] = Counter()
        self._unsaved: dict[Key, float] = {}

    def status_written(self, job: TrainingJob, status: TrainingJobStatus, now: datetime) -> None:
        """`status` replaced the status in `job`."""
        old, key = job.status or TrainingJobStatus(), job.metadata.key
        was_running, runs = is_true(old.conditions, "Running"), is_true(status.conditions, "Running")
        if was_running and not runs:
            # A last checkpoint may be reported together with the end.
            last = (status.checkpoint or CheckpointStatus()).last_time
            self._unsaved[key] = unsaved_seconds(old.conditions, last, now) or 0.0
        if status.restart_count != old.restart_count:
            self._restarted(job, old, status, round(self._unsaved.pop(key, 0.0) * gpus_of(job)))
        elif runs or status.state in ("Completed", "Failed", "Suspended"):
            self.forget(key)

    def forget(self, key: Key) -> None:
        """The job is deleted."""
        self._unsaved.pop(key, None)

    def collect(self, namespaces: Iterable[str]) -> Iterator[CounterMetricFamily]:
        """A namespace's counters start at zero: `increase` does not see a counter that starts at one."""
        zeros: Tally = {(namespace, each): 0 for namespace in namespaces for each in CLASSES}
        meaning = "Attempts that failed and were followed by another, by failure class."
        yield _family("restarts", meaning, self._restarts, zeros)
        meaning = "GPU time since the last checkpoint that failed attempts have lost, by failure class."
        yield _family("lost_gpu_seconds", meaning, self._gpu_seconds, zeros)

    def _restarted(self, job: TrainingJob, old: TrainingJobStatus, status: TrainingJobStatus, gpu_seconds: int) -> None:
        before = failed_attempts(old.restarts)
        for each, count in failed_attempts(status.restarts).items():
            if count > before[each]:
                key = (job.metadata.namespace, each)
                self._restarts[key] += count - before[each]
                self._gpu_seconds[key] += gpu_seconds


def gpus_of(job: TrainingJob) -> int:
    """What a whole attempt holds: of one that has lost a worker the others are idle, too."""
    return job.spec.num_workers * gpus_per_worker(job.spec)


def _family(name: str, meaning: str, counts: Tally, zeros: Tally) -> CounterMetricFamily:
    family = CounterMetricFamily(f"trainingjob_{name}", meaning, labels=BY_CLASS)
    for labels, count in (zeros | counts).items():
        family.add_metric(labels, count)
    return family
