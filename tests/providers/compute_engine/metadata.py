"""The metadata server of a machine of the double.

async with serving_metadata(machine) as address: ...
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from holdfast.httpserver import listening
from tests.providers.compute_engine.catalog import region_of
from tests.providers.compute_engine.machine import FakeMachine

ROOT = "/computeMetadata/v1/"
FLAVOR = {"Metadata-Flavor": "Google"}
GUEST = "instance/guest-attributes/"
ATTRIBUTES = "instance/attributes/"

_VALUES: Mapping[str, Callable[[FakeMachine], str]] = {
    "": lambda machine: "instance/\nproject/\n",
    "instance/id": lambda machine: machine.id,
    "instance/name": lambda machine: machine.name,
    "instance/zone": lambda machine: f"projects/123456789012/zones/{machine.zone}",
    "instance/region": lambda machine: f"projects/123456789012/regions/{region_of(machine.zone)}",
    "instance/machine-type": lambda machine: f"projects/123456789012/machineTypes/{machine.machine_type}",
    "instance/hostname": lambda machine: f"{machine.name}.{machine.zone}.c.{machine.project}.internal",
    "instance/preempted": lambda machine: "TRUE" if machine.preempted else "FALSE",
    "instance/maintenance-event": lambda machine: "NONE",
    "instance/scheduling/preemptible": lambda machine: str(machine.is_spot).upper(),
    "instance/network-interfaces/0/ip": lambda machine: machine.internal_ip,
    "project/project-id": lambda machine: machine.project,
    ATTRIBUTES: lambda machine: "".join(f"{key}\n" for key in sorted(machine.attributes)),
}


def metadata_value(machine: FakeMachine, path: str) -> str | None:
    """Below computeMetadata/v1/; None where there is nothing."""
    if path in _VALUES:
        return _VALUES[path](machine)
    if path.startswith(ATTRIBUTES):
        return machine.attributes.get(path.removeprefix(ATTRIBUTES))
    if path.startswith(GUEST):
        namespace, _, key = path.removeprefix(GUEST).partition("/")
        return machine.guest_attributes.get((namespace, key))
    return None


def metadata_app(machine: FakeMachine) -> web.Application:
    app = web.Application()

    async def answer(request: web.Request) -> web.StreamResponse:
        # Whoever has a browser or a proxy ask can set no such header, or can't help setting the other.
        if request.headers.get("Metadata-Flavor") != "Google" or "X-Forwarded-For" in request.headers:
            return web.Response(status=403, text="Missing Metadata-Flavor:Google header.")
        if not request.path.startswith(ROOT):
            return web.Response(status=404)
        path = request.path.removeprefix(ROOT)
        if request.method == "PUT":
            return await _write(machine, path, request)
        return await _read(machine, path, request.query)

    app.router.add_route("*", "/{path:.*}", answer)
    return app


async def _write(machine: FakeMachine, path: str, request: web.Request) -> web.StreamResponse:
    namespace, _, key = path.removeprefix(GUEST).partition("/")
    if not path.startswith(GUEST) or not key:
        return web.Response(status=405)
    if not machine.write_guest_attribute(namespace, key, await request.text()):
        return web.Response(status=403, text="Guest attributes are disabled.")
    return web.Response(headers=FLAVOR)


async def _read(machine: FakeMachine, path: str, query: Mapping[str, str]) -> web.StreamResponse:
    if query.get("wait_for_change") == "true":
        first = query.get("last_etag", _etag(metadata_value(machine, path)))
        with suppress(TimeoutError):  # then the value is answered as it is
            async with asyncio.timeout(float(query["timeout_sec"]) if "timeout_sec" in query else None):
                while _etag(metadata_value(machine, path)) == first:
                    machine.held_question.set()
                    await machine.changed.wait()
    value = metadata_value(machine, path)
    if value is None:
        return web.Response(status=404, headers=FLAVOR)
    return web.Response(text=value, headers={**FLAVOR, "ETag": _etag(value)})


def _etag(value: str | None) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


@asynccontextmanager
async def serving_metadata(machine: FakeMachine) -> AsyncIterator[str]:
    """The address of the machine's own server."""
    async with listening(metadata_app(machine), host="127.0.0.1", port=0, shutdown_timeout_s=0.1) as port:
        yield f"http://127.0.0.1:{port}"
