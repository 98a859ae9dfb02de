"""What the training programs do alike: epochs that are saved, resumed from, and held where a test wants them to be."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

EPOCHS, STEPS, ROWS = 5, 6, 16
FEATURES, HIDDEN = 8, 16
RATE, MOMENTUM = 0.05, 0.9
# The step before which a worker is held: well within an epoch, with two of them saved.
HELD_EPOCH, HELD_STEP = 3, 3


def resume(load: Callable[[Path], int]) -> int:
    """How many epochs are done; `load` reads them."""
    folder = Path(os.environ["RESUME_FROM"])
    if not folder.exists():
        say("nothing to resume from")
        return 0
    done = load(folder)
    say(f"resumed after epoch {done}")
    return done


def save(epoch: int, write: Callable[[Path], None]) -> None:
    """A folder has the name of a checkpoint only when it is whole."""
    folder = Path(os.environ["CHECKPOINT_DIR"], f"checkpoint-epoch-{epoch}")
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir()
    write(partial)
    partial.rename(folder)


def steps(rank: int, epoch: int) -> Iterator[int]:
    """The steps of an epoch; one of them begins only when nobody holds the workers any more."""
    for step in range(STEPS):
        if (epoch, step) == (HELD_EPOCH, HELD_STEP):
            _hold(rank)
        yield step


def finish(loss: float) -> None:
    say(json.dumps({"loss": loss}))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _hold(rank: int) -> None:
    """While the folder HOLD is there; a file in it says which process is this worker's."""
    folder = Path(os.environ["HOLD"])
    if folder.is_dir():
        partial = folder / f".{rank}"
        partial.write_text(str(os.getpid()))
        partial.rename(folder / str(rank))
    while folder.is_dir():
        time.sleep(0.02)
