"""How a container ended, in words, and whether its command was found at all."""

import re
import signal
from datetime import timedelta

import msgspec
from msgspec import Struct

from holdfast.api.builtin import ContainerStateTerminated
from holdfast.planning.times import parse_time

# What the reference trainer writes as the reason of its termination message when a new attempt would fail in the same
# way. The bare exit code 2 says nothing: argparse and a script that is not there end with 2 as well.
PERMANENT = "PermanentFailure"
LONGEST = 2048
# From a signal the shell makes the exit code 128 + its number.
FROM_SIGNAL = 128
# Others, such as SIGCHLD, end no process.
FATAL = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS),
    *(signal.SIGFPE, signal.SIGKILL, signal.SIGUSR1, signal.SIGSEGV, signal.SIGUSR2, signal.SIGPIPE, signal.SIGALRM),
    *(signal.SIGTERM, signal.SIGXCPU, signal.SIGXFSZ),
)
# Whoever ends by these was stopped by somebody else: the last lines of its log tell nothing about that.
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
START_ERRORS = ("StartError", "ContainerCannotRun")
# A shell's 127, and 128 of runtimes that give no reason.
NOT_FOUND_CODES = (127, 128)
# A program that ran for longer has found its command: it is a later one that is missing.
AT_ONCE = timedelta(seconds=10)

# As runc, crun and this machine's own runner say it. Other start errors, such as those of a GPU's hook, may pass.
_NOT_FOUND = re.compile(
    r"(\bexec\b|executable file|can't run|working directory).*"
    r"(not found|no such file or directory|permission denied|exec format error|is a directory)",
    re.IGNORECASE | re.DOTALL,
)
# PyTorch puts the rank before each line of a traceback.
_RANK = re.compile(r"^\[\w+\]: ?", re.MULTILINE)
_FRAME = re.compile(r'\s+File "([^"]+)", line (\d+)')
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python\d|^<")


class TerminationReason(Struct, frozen=True):
    """A termination message with a reason."""

    reason: str
    message: str = ""


def how(end: ContainerStateTerminated) -> str:
    """What follows the worker's name in a sentence."""
    number = killed_by(end)
    if number is not None and end.reason in ("", "Error"):
        return f"was killed ({number.name})"
    cause = f" ({end.reason})" if end.reason and end.reason != "Error" else ""
    return f"exited with code {end.exit_code}{cause}"


def killed_by(end: ContainerStateTerminated) -> signal.Signals | None:
    number = end.signal or end.exit_code - FROM_SIGNAL
    return next((each for each in FATAL if each == number), None)


def words(end: ContainerStateTerminated) -> str:
    """What it said last, as far as that explains its end."""
    if killed_by(end) in FROM_OUTSIDE and end.reason in ("", "Error"):
        return ""
    told = _termination_reason(end)
    text = told.message if told is not None and told.message else end.message
    return traceback_gist(text) or text.strip()[-LONGEST:]


def is_permanent(end: ContainerStateTerminated) -> bool:
    """Its own termination message says so."""
    told = _termination_reason(end)
    return told is not None and told.reason == PERMANENT


def never_ran(end: ContainerStateTerminated) -> bool:
    """Its command could not be found or executed."""
    if end.reason in START_ERRORS:
        return _NOT_FOUND.search(end.message) is not None
    if end.exit_code not in NOT_FOUND_CODES or not end.started_at or not end.finished_at:
        return False
    return parse_time(end.finished_at) - parse_time(end.started_at) <= AT_ONCE


def traceback_gist(text: str) -> str:
    """The last exception of a Python traceback and where it was raised; "" when there is no traceback.

    The line is of the user's own code, if any of that is in the traceback.
    """
    frames: list[tuple[str, str]] = []
    exception = ""
    for line in _RANK.sub("", text).splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            if exception:
                frames, exception = [], ""
            frames.append((frame[1], frame[2]))
        elif frames and not exception and line[:1].strip():
            exception = line.strip()
    if not exception:
        return ""
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    file, number = (own or frames)[-1]
    return f"{exception[:LONGEST]} ({file}:{number})"


def _termination_reason(end: ContainerStateTerminated) -> TerminationReason | None:
    if not end.message.startswith("{"):
        return None
    try:
        return msgspec.json.decode(end.message, type=TerminationReason)
    except (msgspec.MsgspecError, RecursionError):
        return None
