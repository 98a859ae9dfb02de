"""A training that only computes, on a core of its own, and notes when each of its steps began and how long it took.

    python -m bench.steps CORE FILE

Compared are the steps of different stretches of time: medians, since whatever else runs here lengthens some of them.
"""

import os
import struct
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

STEP = struct.Struct("ddd")
SIZE = 320


class Stretch(NamedTuple):
    """What was going on from one moment to another."""

    what: str
    began_s: float
    ended_s: float


class Step(NamedTuple):
    """`core_s` is the part of it that the training had its core: on a machine with other work, only that tells."""

    began_s: float
    took_s: float
    core_s: float


def steps(file: Path) -> list[Step]:
    content = file.read_bytes()
    return [Step(*STEP.unpack_from(content, at)) for at in range(0, len(content) - STEP.size + 1, STEP.size)]


class Typical(NamedTuple):
    """The median step of a stretch."""

    took_s: float
    core_s: float


def typical(done: list[Step], stretch: Stretch) -> Typical:
    during = [step for step in done if stretch.began_s <= step.began_s <= stretch.ended_s - step.took_s]
    return Typical(median(step.took_s for step in during), median(step.core_s for step in during))


class Longer(NamedTuple):
    """By how much a step takes longer, as a part of what it takes without; `noise` is how much pairs differ anyway."""

    took: float
    core: float
    noise: float
    pairs: int


def longer(done: list[Step], stretches: list[Stretch], what: str) -> Longer | None:
    """Each stretch of that kind beside the one right before it, which was without; None if there are none."""
    pairs = [(typical(done, a), typical(done, b)) for a, b in pairwise(stretches) if b.what == what]
    if not pairs:
        return None
    without = [before for before, _ in pairs]
    noise = [abs(b.took_s / a.took_s - 1) for a, b in pairwise(without)]
    return Longer(
        took=median(beside.took_s / before.took_s - 1 for before, beside in pairs),
        core=median(beside.core_s / before.core_s - 1 for before, beside in pairs),
        noise=median(noise) if noise else 0.0,
        pairs=len(pairs),
    )


def train(file: Path) -> None:
    import numpy

    weights = numpy.random.default_rng(0).random((SIZE, SIZE), dtype=numpy.float32)
    with file.open("wb", buffering=0) as opened:
        while True:
            began_s, core_s = time.monotonic(), time.thread_time()
            for _ in range(4):
                weights = numpy.tanh(weights @ weights)
            opened.write(STEP.pack(began_s, time.monotonic() - began_s, time.thread_time() - core_s))


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[1])})
    train(Path(sys.argv[2]))
