"""What a sidecar leaves in its termination message: it is in the pod's status, and survives a lost connection."""

from pathlib import Path

import msgspec
import structlog

from holdfast.reports.wire import TerminationReport
from holdfast.sidecar.settings import KUBELET_LOG

# The kubelet keeps no more.
MOST_BYTES = 4096

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def write_termination_report(file: Path, word: TerminationReport) -> None:
    content = msgspec.json.encode(word)
    if len(content) > MOST_BYTES and word.progress is not None:
        content = msgspec.json.encode(msgspec.structs.replace(word, progress=None))
    _write(file, content)


def write_failure_reason(file: Path, reason: str) -> None:
    """Why the training can't start; the job's status shows it."""
    if file != Path(KUBELET_LOG) or file.exists():  # elsewhere than in a pod nobody would read it
        _write(file, reason.encode())


def _write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content[:MOST_BYTES])
    except OSError as error:
        log.warning("can't leave a termination message", file=str(file), reason=error.strerror)
