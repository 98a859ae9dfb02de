"""An operator as a sidecar sees it: a server that takes reports, and answers what a test wants."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp import web

from holdfast.api import reports
from holdfast.api.reports import FILE, Checkpoint, Endpoint, Progress, ReportReply, WorkerReport, encode_endpoint
from holdfast.cluster.certificate import self_signed_identity

TOKEN = "a-token"
WITHIN_S = 120.0


class OperatorDouble:
    """Takes each batch once, as the real one does, and keeps epochs up to `kept_epoch`, or all that it has heard."""

    def __init__(self, folder: Path) -> None:
        self.reports_file, self.token_file = folder / FILE, folder / "token"
        self.token_file.write_text(TOKEN)
        self.batches: list[WorkerReport] = []
        self.bodies: list[WorkerReport] = []
        self.tokens: set[str] = set()
        self.status = 200
        self.over = False
        self.stop = ""
        self.ended_well = False
        self.keeps_epochs = True
        self._seen: set[tuple[str, int, int]] = set()

    @property
    def epochs(self) -> dict[int, Progress]:
        return {entry.epoch: entry for entry in self.progress if entry.step is None}

    @property
    def progress(self) -> list[Progress]:
        return [entry for batch in self.batches for entry in batch.progress]

    @property
    def checkpoints(self) -> list[Checkpoint]:
        return [entry for batch in self.batches for entry in batch.checkpoints]

    def outcomes(self, outcome: str) -> list[int]:
        return [entry.epoch for entry in self.checkpoints if entry.outcome == outcome]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["OperatorDouble"]:
        identity = self_signed_identity("127.0.0.1")
        app = web.Application()
        app.router.add_post(reports.PATH, self._take)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=identity.context).start()
            url = f"https://127.0.0.1:{runner.addresses[0][1]}"
            self.reports_file.write_text(encode_endpoint(Endpoint(url=url, authority=identity.authority.decode())))
            yield self
        finally:
            await runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers["Authorization"])
        batch = reports.decode(await request.read())
        self.bodies.append(batch)
        if self.status != 200:
            return web.json_response({"error": "not now"}, status=self.status)
        if (batch.run, batch.index, batch.sequence) not in self._seen:
            self._seen.add((batch.run, batch.index, batch.sequence))
            self.batches.append(batch)
        kept = max(self.epochs, default=0) if self.keeps_epochs else 0
        answer = ReportReply(
            attempt=batch.attempt,
            attempt_over=self.over,
            stop=self.stop,
            ended_well=self.ended_well,
            recorded_epoch=kept,
        )
        return web.Response(body=msgspec.json.encode(answer), status=409 if self.over else 200)


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait until it holds; a test fails if it never does."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110  # it holds in other processes, which set no event
            await asyncio.sleep(0.02)
