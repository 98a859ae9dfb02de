"""What the sidecars' reports cost the operator: python -m bench.reports

Sidecars of 50 pods, in a process of their own, report over TLS to a report server. Printed is the share
of a core that 1,000 sidecars would keep busy, with nothing new and with news in every report.
"""

import asyncio
import ssl
import sys
import time

import aiohttp
import msgspec
import uvloop

from bench.many_jobs import say
from holdfast.api import reports
from tests.runtime.report_server import running
from tests.trainingjob.reports.reports import batch

PODS, ROUNDS = 50, 15
SIDECARS = 1_000
# Seconds between two reports of one sidecar.
QUIET_S, NEWS_S = 10.0, 5.0


class Callers(msgspec.Struct):
    url: str
    authority: str
    tokens: list[str]


async def report(callers: Callers) -> None:
    """All pods, again and again, each on a connection that stays open."""
    context = ssl.create_default_context(cadata=callers.authority)

    async def one(index: int, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
            for sequence in range(1, ROUNDS + 1):
                body = msgspec.json.encode(batch(index=index, sequence=sequence))
                async with session.post(f"{callers.url}{reports.PATH}", data=body, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()

    await asyncio.gather(*(one(index, token) for index, token in enumerate(callers.tokens)))


async def measure() -> float:
    """Seconds of this process for one report."""
    async with running() as office:
        tokens = [await office.worker(index) for index in range(PODS)]
        callers = Callers(office.endpoint.url, office.endpoint.authority, tokens)
        command = [sys.executable, "-m", "bench.reports", "sidecars"]
        child = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
        before_s = time.process_time()
        await child.communicate(msgspec.json.encode(callers))
        assert child.returncode == 0
        assert len(office.taken) == PODS * ROUNDS
        return (time.process_time() - before_s) / len(office.taken)


def main() -> None:
    if sys.argv[1:] == ["sidecars"]:
        asyncio.run(report(msgspec.json.decode(sys.stdin.buffer.read(), type=Callers)))
        return
    each_s = uvloop.run(measure())
    for words, every_s in (("with nothing new", QUIET_S), ("with news", NEWS_S)):
        say(f"{SIDECARS} sidecars {words}: {SIDECARS / every_s * each_s:.0%} of a core")


if __name__ == "__main__":
    main()
