"""The termination message: what a container leaves to be read in its pod's status."""

from pathlib import Path

from holdfast.machine import logs

MESSAGE_BYTES = 4096
# Of the log, when there is no message: as a kubelet takes.
LOG_BYTES = 2048
LOG_LINES = 80
# How much of a log's end is looked at for its last lines.
WINDOW = 1 << 16


def termination_message(message_file: Path, log: Path, policy: str, exit_code: int) -> str:
    message = _end(message_file, MESSAGE_BYTES, from_start=True)
    if not message and policy == "FallbackToLogsOnError" and exit_code != 0:
        message = logs.tail_log(_end(log, WINDOW), LOG_LINES)[-LOG_BYTES:]
    return message.decode(errors="replace")


def _end(path: Path, size: int, *, from_start: bool = False) -> bytes:
    try:
        with path.open("rb") as file:
            if not from_start:
                file.seek(max(path.stat().st_size - size, 0))
            return file.read(size)
    except OSError:
        return b""
