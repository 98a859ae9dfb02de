"""Bare requests to the double, without holdfast's own client."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from holdfast.providers.gcp.credentials import parse_service_account
from holdfast.providers.gcp.http import HttpRequest, HttpResponse
from holdfast.providers.gcp.instance import MachineType, insert_body
from holdfast.providers.protocol import MachineSpec
from tests.providers.compute_engine.accounts import GRANT, Account
from tests.providers.compute_engine.double import PROJECT, ComputeEngine
from tests.providers.compute_engine.machine import REALISTIC, FakeMachine, Pace
from tests.providers.gcp.lab import SPEC, ZONE, now

SCOPES = ("https://www.googleapis.com/auth/compute",)


class Reply(NamedTuple):
    status: int
    content: Any

    @property
    def reason(self) -> str:
        return str(self.content["error"]["errors"][0]["reason"])


class Client:
    def __init__(self, cloud: ComputeEngine, account: Account) -> None:
        self.cloud = cloud
        self.account = account
        self.token = ""

    async def ask(
        self, verb: str, path: str, body: Mapping[str, Any] | None = None, *, token: str | None = None, **query: str
    ) -> Reply:
        """path: below the project."""
        if token is None and not self.token:
            self.token = (await self.fetch_token()).content["access_token"]
        request = HttpRequest(
            method=verb,
            url=f"{self.cloud.origin}/compute/v1/projects/{PROJECT}/{path}",
            query=query,
            headers={"Authorization": f"Bearer {self.token if token is None else token}"},
            body=b"" if body is None else msgspec.json.encode(body),
        )
        return _reply(await self.cloud.answer(request))

    async def fetch_token(
        self, *, key_file: bytes | None = None, grant: str = GRANT, audience: str = "", hours: float = 0.0
    ) -> Reply:
        account = parse_service_account(key_file or self.account.key_file())
        uri = f"{self.cloud.origin}/token"
        assertion = account.assertion(SCOPES, audience or uri, now() + timedelta(hours=hours))
        form = f"grant_type={grant}&assertion={assertion}".replace(":", "%3A")
        return _reply(await self.cloud.answer(HttpRequest(method="POST", url=uri, body=form.encode())))

    async def insert(self, wanted: MachineSpec = SPEC, request_id: str = "") -> Reply:
        body = insert_body(wanted, PROJECT, MachineType())
        query = {"requestId": request_id} if request_id else {}
        return await self.ask("POST", f"zones/{wanted.zone}/instances", body, **query)

    async def machine(self, wanted: MachineSpec = SPEC) -> FakeMachine:
        """One that runs."""
        operation = await self.insert(wanted)
        assert operation.status == 200, operation
        await self.wait(operation)
        machine = self.cloud.machine(wanted.name)
        await asyncio.sleep(self.cloud.pace.start_s)
        assert machine.status == "RUNNING"
        return machine

    async def wait(self, operation: Reply, zone: str = ZONE) -> Reply:
        return await self.ask("POST", f"zones/{zone}/operations/{operation.content['name']}/wait")


def _reply(response: HttpResponse) -> Reply:
    return Reply(response.status, msgspec.json.decode(response.body) if response.body else None)


@asynccontextmanager
async def client(pace: Pace = REALISTIC) -> AsyncIterator[Client]:
    cloud = ComputeEngine(now=now, pace=pace)
    yield Client(cloud, cloud.add_account())
    await cloud.close()
