"""A checkpoint of 2 GiB in 64 files to an S3 server and back: speed, memory, and what a training notices of it.

    python -m bench.checkpoints [--quick]

Speeds are told as parts of what obstore alone reaches with the same files, in turns with it; steps of the training as
parts of what they take without a sidecar. The store is moto's server, which runs here.
"""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench.beside import Beside
from bench.many_jobs import say
from bench.steps import longer
from bench.transfers import Compared, Transfers
from tests.checkpoints.servers.server import s3

FILES = 64
GIB = 1 << 30
MEMORY = Path("/dev/shm")  # noqa: S108  # the disk is not what is measured


def run(size: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=roomy(size)) as made:
        folder = Path(made)
        os.environ["TMPDIR"] = made  # where the server keeps what it is given
        source = checkpoint(folder / "source", size)
        say(f"A checkpoint of {size / GIB:g} GiB in {FILES} files, {rounds} rounds, in {folder.parent}:")
        (folder / "server").mkdir()
        with s3(folder / "server") as server:
            uploads, restores = Transfers(server, source, folder / "restored").compare(rounds)
        say(told("upload", uploads, size))
        say(told("restore", restores, size))
        beside_a_training(folder, source, rounds)


def beside_a_training(folder: Path, source: Path, rounds: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        say("There is one core alone: what a training notices of its sidecar can't be told.")
        return
    (folder / "pod").mkdir()
    (folder / "store").mkdir()
    os.sched_setaffinity(0, {cores[-1]})  # this process and the server that it starts
    try:
        with s3(folder / "store") as server:
            pod = Beside(folder / "pod", source, server.address("job"), server.environ, cores)
            done = pod.run(rounds)
    finally:
        os.sched_setaffinity(0, cores)
    say(f"memory of the sidecar at its peak: {told_mib(pod.peaks_mib)} (80 MiB is the limit)")
    for what, said in (("idle", "beside an idle one"), ("upload", "while it uploads")):
        found = longer(done, pod.stretches, what)
        if found is None:
            say(f"  {said:<20} not measured: the checkpoint is too small")
            continue
        say(
            f"  a step of the training {said:<18} {found.took:+.1%} on the clock, {found.core:+.1%} on its core "
            f"(median of {found.pairs} turns; stretches without one differ by {found.noise:.1%} from turn to turn)"
        )


def told(what: str, compared: Compared, size: int) -> str:
    raw, own = (median(one.wall_s for one in taken) for taken in compared)
    raw_cpu, own_cpu = (median(one.cpu_s for one in taken) * GIB / size for taken in compared)
    return (
        f"  {what:<8} {compared.share:4.0%} of obstore's own speed (80% is the aim): "
        f"{size / own / (1 << 20):.0f} and {size / raw / (1 << 20):.0f} MiB/s; "
        f"time on a core per GiB: {own_cpu:.2f} and {raw_cpu:.2f} s"
    )


def told_mib(peaks: dict[str, float]) -> str:
    return ", ".join(f"{peak:.0f} MiB in an {what}" for what, peak in peaks.items()).replace("an restore", "a restore")


def checkpoint(folder: Path, size: int) -> Path:
    folder.mkdir()
    content = bytearray(os.urandom(size // FILES))
    for number in range(FILES):
        content[0] = number
        (folder / f"shard-{number:02}.bin").write_bytes(content)
    return folder


def roomy(size: int) -> Path | None:
    """In memory, if there is room for the checkpoint, two copies in the server, what it works with, and a restore."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    room = min(int(found[1]) * 1024 if found else 0, shutil.disk_usage(MEMORY).free if MEMORY.is_dir() else 0)
    return MEMORY if room > 6 * size else None


if __name__ == "__main__":
    run(*((GIB // 8, 2) if sys.argv[1:] == ["--quick"] else (2 * GIB, 3)))
