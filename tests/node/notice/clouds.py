"""Metadata servers on the loopback address that answer as the clouds document, and misbehave when told to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Protocol

from aiohttp import web

from holdfast.httpserver import listening
from holdfast.times import format_time

Misbehaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]


class MetadataDouble(Protocol):
    """`preempt` has the notice stand, `withdraw` takes it back. `faults` answer the next requests, one each."""

    cloud: str
    requests: list[str]
    faults: list[Misbehaviour]

    def preempt(self, deadline: datetime) -> None: ...

    def withdraw(self) -> None: ...

    def app(self) -> web.Application: ...


class _Double:
    def __init__(self) -> None:
        self.requests: list[str] = []
        self.faults: list[Misbehaviour] = []
        self.deadline: datetime | None = None
        self._changed = asyncio.Event()

    def preempt(self, deadline: datetime) -> None:
        self.deadline = deadline
        self._changed.set()

    def withdraw(self) -> None:
        self.deadline = None
        self._changed.set()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        if self.faults:
            return await self.faults.pop(0)(request)
        return await self.respond(request)

    async def respond(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError


class ComputeEngineDouble(_Double):
    cloud = "Compute Engine"

    async def respond(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403)
        if request.path == "/computeMetadata/v1/":
            return self._google("instance/\n")
        if request.path != "/computeMetadata/v1/instance/preempted":
            return web.Response(status=404)
        if request.query.get("wait_for_change") == "true" and request.query.get("last_etag") == self._etag:
            self._changed.clear()
            with suppress(TimeoutError):  # then the value is answered as it is
                await asyncio.wait_for(self._changed.wait(), float(request.query["timeout_sec"]))
        return self._google("FALSE" if self.deadline is None else "TRUE")

    @property
    def _etag(self) -> str:
        return f"etag+/{self.deadline}"

    def _google(self, text: str) -> web.Response:
        return web.Response(text=text, headers={"Metadata-Flavor": "Google", "ETag": self._etag})


class Ec2Double(_Double):
    cloud = "EC2"

    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[str] = []

    async def respond(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/latest/api/token" and request.method == "PUT":
            if request.headers.get("X-aws-ec2-metadata-token-ttl-seconds") != "21600":
                return web.Response(status=400)
            self.tokens.append(f"AQAEA-{len(self.tokens)}==")
            return web.Response(text=self.tokens[-1])
        if request.headers.get("X-aws-ec2-metadata-token", "-") not in self.tokens[-1:]:
            return web.Response(status=401)
        if request.path != "/latest/meta-data/spot/instance-action" or self.deadline is None:
            return web.Response(status=404)
        return web.json_response({"action": "terminate", "time": format_time(self.deadline)})


class AzureDouble(_Double):
    cloud = "Azure"
    name = "aks-spot-vmss_3"

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, object]] = []
        """Events beside the preemption."""

    async def respond(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Metadata") != "true" or "api-version" not in request.query:
            return web.Response(status=400)
        if request.path == "/metadata/instance/compute/name":
            return web.Response(text=self.name)
        if request.path != "/metadata/scheduledevents":
            return web.Response(status=404)
        events = list(self.events)
        if self.deadline is not None:
            events.append(scheduled_event(self.name, self.deadline))
        return web.json_response({"DocumentIncarnation": 1, "Events": events})


def scheduled_event(
    name: str, deadline: datetime | None, *, kind: str = "Preempt", status: str = "Scheduled"
) -> dict[str, object]:
    return {
        "EventId": "f020ba2e-3bc0-4c40-a10b-86575a9eabd5",
        "EventStatus": status,
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": [name],
        "NotBefore": deadline.strftime("%a, %d %b %Y %H:%M:%S GMT") if deadline is not None else "",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }


DOUBLES: tuple[Callable[[], MetadataDouble], ...] = (ComputeEngineDouble, Ec2Double, AzureDouble)


@asynccontextmanager
async def serving(double: MetadataDouble) -> AsyncIterator[str]:
    """The address of the server."""
    async with listening(double.app(), host="127.0.0.1", port=0, shutdown_timeout_s=0.1) as port:
        yield f"http://127.0.0.1:{port}"


def answers(status: int, text: str = "", **headers: str) -> Misbehaviour:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return answer


async def resets(request: web.Request) -> web.StreamResponse:
    """The connection breaks in the middle of an answer."""
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b"TR")
    assert request.transport is not None
    request.transport.abort()
    return response


async def is_silent(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("nothing ends this")
