"""What a TrainingJob costs the API server: requests per job by who asks, verb and resource, from creation to its end.

python -m bench.requests [JOBS] [WORKERS] [OPTION OF THE OPERATOR …]

The server counts them itself, in its audit log. Watches and Leases are left out: their number depends on time, not on
jobs. So are reads of lists, which begin a watch.
"""

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path

from bench.many_jobs import create, say, states
from tests.control_plane.audit import Request
from tests.control_plane.build import build
from tests.control_plane.server import ControlPlane
from tests.operator.conftest import install_kinds
from tests.operator.process import OperatorProcess

LEFT_OUT = ("watch", "list")
QUIET_S = 5.0


def asker(request: Request, operator: str) -> str:
    """The operator, or the name of the controller, which the controller manager writes at the end of its user agent."""
    name = request.user.username
    if name == operator:
        return "operator"
    return name.rpartition(":")[2] if name.startswith("system:") else "others"


async def until_completed(plane: ControlPlane, jobs: int) -> None:
    while (seen := await states(plane))["Completed"] < jobs:
        say(f"  {dict(seen)}")
        await asyncio.sleep(5)
    await asyncio.sleep(QUIET_S)  # the controllers write a moment later than the operator


async def run(jobs: int, workers: int, options: tuple[str, ...]) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        ControlPlane(Path(folder) / "plane", build(sys.stdout)).running() as plane,
    ):
        install_kinds(plane)
        await plane.nodes.add(max(4, jobs * workers // 100), gpus=128, cpu="512", pods=500)
        with OperatorProcess(plane, Path(folder), "--no-leader-elect", *options).running() as operator:
            since = plane.audit_position()
            await create(plane, jobs, workers)
            await until_completed(plane, jobs)
            told = plane.audit(since)
        report(told, operator.user, jobs, workers)


def report(told: list[Request], operator: str, jobs: int, workers: int) -> None:
    counts: Counter[tuple[str, str, str]] = Counter()
    for each in told:
        what = "/".join(filter(None, (each.target.resource, each.target.subresource)))
        who = asker(each, operator)
        if what and each.verb not in LEFT_OUT and each.target.resource != "leases" and who != "others":
            counts[who, each.verb, what] += 1
    say(f"{jobs} TrainingJobs of {workers} workers, requests per job:")
    for (who, verb, what), count in sorted(counts.items()):
        if count >= jobs / 100:
            say(f"  {who:32} {verb:8} {what:28} {count / jobs:6.2f}")
    for who in sorted({who for who, _, _ in counts}):
        total = sum(count for (by, _, _), count in counts.items() if by == who)
        say(f"  {who:32} {'all':37} {total / jobs:6.2f}")
    say(f"  {'all':70} {sum(counts.values()) / jobs:6.2f}")


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:3] if each.isdecimal()]
    count, size = (*numbers, *(100, 4)[len(numbers) :])
    asyncio.run(run(count, size, tuple(sys.argv[1 + len(numbers) :])))
