"""An operator as a sidecar sees it: a server that takes reports, and answers what a test wants."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp import web

from holdfast.api import credentials, reports
from holdfast.api.backup_runs import BackupProgress, WantedBackup
from holdfast.api.credentials import CredentialRequest, RegistryCredential
from holdfast.api.reports import (
    FILE,
    CheckpointReport,
    Endpoint,
    ProgressReport,
    ReportReply,
    WorkerReport,
    encode_endpoint,
)
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
        self.wanted: WantedBackup | None = None
        self.withdrawn = False
        self.credential = RegistryCredential()
        self.credential_status = 200
        self.credential_requests: list[CredentialRequest] = []
        self._seen: set[tuple[str, int, int]] = set()

    @property
    def epochs(self) -> dict[int, ProgressReport]:
        return {entry.epoch: entry for entry in self.progress if entry.step is None}

    @property
    def progress(self) -> list[ProgressReport]:
        return [entry for batch in self.batches for entry in batch.progress]

    @property
    def checkpoints(self) -> list[CheckpointReport]:
        return [entry for batch in self.batches for entry in batch.checkpoints]

    def outcomes(self, outcome: str) -> list[int]:
        return [entry.epoch for entry in self.checkpoints if entry.outcome == outcome]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["OperatorDouble"]:
        identity = self_signed_identity("127.0.0.1")
        app = web.Application()
        app.router.add_post(reports.PATH, self._take)
        app.router.add_post(credentials.PATH, self._give_credential)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=identity.context).start()
            url = f"https://127.0.0.1:{runner.addresses[0][1]}"
            self.reports_file.write_text(encode_endpoint(Endpoint(url=url, authority=identity.authority.decode())))
            yield self
        finally:
            await runner.cleanup()

    async def _give_credential(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers["Authorization"])
        self.credential_requests.append(credentials.decode_request(await request.read()))
        if self.credential_status != 200:
            return web.json_response({"error": "there is no Secret ml/login: create it"}, status=self.credential_status)
        return web.Response(body=msgspec.json.encode(self.credential))

    @property
    def backup_states(self) -> list[str]:
        """What was told of the backup, without repetitions."""
        told = [body.backup.state for body in self.bodies if body.backup is not None]
        return [state for number, state in enumerate(told) if not number or told[number - 1] != state]

    @property
    def backup(self) -> BackupProgress | None:
        """What was told of the backup last."""
        return next((body.backup for body in reversed(self.bodies) if body.backup is not None), None)

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
            backup=self.wanted,
            backup_withdrawn=self.withdrawn,
        )
        return web.Response(body=msgspec.json.encode(answer), status=409 if self.over else 200)


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait until it holds; a test fails if it never does."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110  # it holds in other processes, which set no event
            await asyncio.sleep(0.02)
