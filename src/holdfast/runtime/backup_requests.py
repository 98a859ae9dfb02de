"""Backups that sidecars are to take, and how far each is; in memory, between two controllers of one operator.

The controller of CheckpointBackups puts what it wants and reads the progress. The receiver of reports takes the wanted
backup of a pod into its answer and records what the pod's sidecar reports. Nothing here outlives the operator: a run
that is under way is in its CheckpointBackup's status and is put again, and the sidecar reports again what it did.
"""

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime

from msgspec import Struct, structs

from holdfast.api.backup_runs import BackupProgress, WantedBackup
from holdfast.api.meta import Key
from holdfast.errors import HoldfastError
from holdfast.runtime.informer import Informers

# Runs that were withdrawn, so that their sidecars stop; one that is forgotten stops at its deadline.
MOST_WITHDRAWN = 10_000


class BackupOfAnotherPod(HoldfastError):
    """A pod reports about a backup that another pod's sidecar is to take."""


class _Request(Struct, frozen=True):
    pod_uid: str
    wanted: WantedBackup
    deadline: datetime
    progress: BackupProgress | None = None


class BackupRequests:
    """An event source of the controller of CheckpointBackups: progress queues the backup's key."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], _Request] = {}
        self._by_pod: dict[str, dict[tuple[str, int], None]] = {}
        self._withdrawn: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._add: Callable[[Key], None] = lambda _: None

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        self._add = add

    # For the controller of CheckpointBackups.

    def put(self, pod_uid: str, wanted: WantedBackup, *, deadline: datetime) -> None:
        """Have the pod's sidecar take this backup. What is put already stays as it is, with its progress.

        Several backups of one pod are taken one after the other, in the order in which they were put.
        """
        if wanted.is_of in self._requests:
            return
        # An earlier run of the backup is over when its next one begins.
        self.withdraw(wanted.uid)
        self._withdrawn.pop(wanted.is_of, None)
        self._requests[wanted.is_of] = _Request(pod_uid, wanted, deadline)
        self._by_pod.setdefault(pod_uid, {})[wanted.is_of] = None

    def withdraw(self, backup_uid: str) -> None:
        """No run of this backup is wanted any more; a sidecar that is at it stops. Unknown ones are no error."""
        for run in [run for run in self._requests if run[0] == backup_uid]:
            request = self._requests.pop(run)
            of_pod = self._by_pod[request.pod_uid]
            del of_pod[run]
            if not of_pod:
                del self._by_pod[request.pod_uid]
            self._withdrawn[run] = None
            if len(self._withdrawn) > MOST_WITHDRAWN:
                self._withdrawn.popitem(last=False)

    def progress(self, backup_uid: str, run: int) -> BackupProgress | None:
        """What the sidecar reported last; None before its first report, and after `withdraw`."""
        request = self._requests.get((backup_uid, run))
        return request.progress if request is not None else None

    # For the receiver of reports.

    def wanted(self, pod_uid: str, now: datetime) -> WantedBackup | None:
        """What the pod's sidecar is to take now, with the seconds that are left."""
        for run in self._by_pod.get(pod_uid, ()):
            request = self._requests[run]
            left_s = (request.deadline - now).total_seconds()
            is_over = request.progress is not None and request.progress.is_final
            # The one that is over stays in the answer while no other waits: its sidecar repeats how it ended.
            if left_s > 0 and not (is_over and len(self._by_pod[pod_uid]) > 1):
                return structs.replace(request.wanted, seconds_left=left_s)
        return None

    def is_withdrawn(self, progress: BackupProgress) -> bool:
        """Whether the reporting sidecar is to stop. A run that is merely not known yet is not withdrawn."""
        return progress.is_of in self._withdrawn

    def record(self, pod_uid: str, progress: BackupProgress) -> None:
        """Take a report. One about a run that is not put, or not yet, is dropped: the sidecar repeats it."""
        request = self._requests.get(progress.is_of)
        if request is None:
            return
        if request.pod_uid != pod_uid:
            raise BackupOfAnotherPod("the report is about a backup that this pod's sidecar is not to take")
        if request.progress == progress:
            return
        if request.progress is not None and request.progress.state == "pushed":
            return  # the image is there, whatever comes late
        self._requests[progress.is_of] = structs.replace(request, progress=progress)
        self._add(Key(request.wanted.namespace, request.wanted.backup))
