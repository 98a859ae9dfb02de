"""Puts the newest checkpoint of all attempts into this attempt's folder, before the training program starts.

Worker 0 decides for all: it writes its decision down when everything is in place, and the others wait for that. They
share its volume, so what it has put there is theirs too.
"""

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.sidecar.checkpoints import Checkpoint, attempt_of, attempts, escaping, newest_first
from holdfast.sidecar.copying import copy, remove_leftovers, sync

POLL_S = 0.2
POLLS_PER_LINE = 150
NOTHING = "nothing to resume from"


class NoAttempt(HoldfastError):
    """The folder is not that of an attempt."""


def restore(checkpoint_dir: Path, resume_from: Path, index: int, *, sleep: Callable[[float], None]) -> str:
    """What there is to resume from. RESUME_FROM leads to it when this returns, and does not exist otherwise."""
    attempt = attempt_of(checkpoint_dir)
    if attempt is None:
        raise NoAttempt(
            f"CHECKPOINT_DIR is {checkpoint_dir}: its last part should be attempt-N, as the operator sets it"
        )
    checkpoint_dir.mkdir(parents=True, exist_ok=True)
    decision = checkpoint_dir.with_name(f"{checkpoint_dir.name}.decision")
    if index == 0:
        return _decide(checkpoint_dir, resume_from, attempt, decision)
    # Without a folder of an earlier attempt there is nothing, or the volume is this worker's alone: no one to wait for.
    if attempt > 0 and any(attempts(checkpoint_dir.parent, attempt - 1)):
        _wait(decision, sleep)
    return decision.read_text().strip() if decision.exists() else NOTHING


def _decide(checkpoint_dir: Path, resume_from: Path, attempt: int, decision: Path) -> str:
    for _, folder in attempts(checkpoint_dir.parent, attempt):
        remove_leftovers(folder)
    found = _put(checkpoint_dir, attempt)
    if found:
        _link(resume_from, checkpoint_dir / found.folder.name)
    else:
        resume_from.unlink(missing_ok=True)
    said = f"resuming from {found}" if found else NOTHING
    _write(decision, f"{said}\n")
    return said


def _put(checkpoint_dir: Path, attempt: int) -> Checkpoint | None:
    """The newest checkpoint, which then is in CHECKPOINT_DIR."""
    while found := _newest(checkpoint_dir.parent, attempt):
        if found.attempt == attempt or copy(found.folder, checkpoint_dir / found.folder.name):
            return found
    return None


def _newest(root: Path, attempt: int) -> Checkpoint | None:
    for found in newest_first(root, attempt):
        link = escaping(found.folder, root)
        if link is None:
            return found
        sys.stderr.write(f"{found} is left out: the link {link} leads out of {root}, or nowhere\n")
    return None


def _wait(decision: Path, sleep: Callable[[float], None]) -> None:
    for polls in itertools.count(1):
        if decision.exists():
            return
        if polls % POLLS_PER_LINE == 0:
            sys.stdout.write(
                f"waiting for worker 0 to put the newest checkpoint into {decision.parent}; "
                "if it says that it has, the workers do not share that volume: use one that is ReadWriteMany\n"
            )
            sys.stdout.flush()
        sleep(POLL_S)


def _link(link: Path, target: Path) -> None:
    partial = link.with_name(f".{link.name}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(os.path.relpath(target, link.parent))
    partial.replace(link)
    sync(link.parent)


def _write(file: Path, text: str) -> None:
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(text)
    partial.replace(file)
