"""Changes are told from the beginning, in order, across the end of a watch."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest

from holdfast.api.core.objects import ConfigMap
from tests.control_plane.api import JSON, Session
from tests.control_plane.changes import Change, changes
from tests.control_plane.server import ControlPlane

Told = tuple[str, dict[str, str], bool, bool]


def told(change: Change[ConfigMap]) -> Told:
    return change.obj.metadata.name, change.obj.data, change.new, change.gone


async def test_what_is_there_comes_first_and_then_every_change(control_plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    async with control_plane.api.session() as session:
        await session.request("POST", path, {"metadata": {"name": "one"}, "data": {"a": "1"}})
        seen: list[Told] = []
        versions: list[int] = []
        async with aclosing(named(session, path)) as following:
            seen.append(told(await anext(following)))
            await session.request("PUT", f"{path}/one", {"metadata": {"name": "one"}, "data": {"a": "2"}})
            await session.request("POST", path, {"metadata": {"name": "two"}})
            await session.request("DELETE", f"{path}/one")
            for _ in range(3):
                change = await anext(following)
                seen.append(told(change))
                versions.append(change.version)
    assert seen == [
        ("one", {"a": "1"}, True, False),
        ("one", {"a": "2"}, False, False),
        ("two", {}, True, False),
        ("one", {"a": "2"}, False, True),
    ]
    assert versions == sorted(versions)


async def named(session: Session, path: str) -> AsyncGenerator[Change[ConfigMap], None]:
    """Without the one that every namespace has."""
    async for change in changes(session, path, ConfigMap):
        if change.obj.metadata.name != "kube-root-ca.crt":
            yield change


class Scripted(Session):
    """A server that ends each watch after its lines."""

    def __init__(self, *watches: list[bytes]) -> None:
        self.watches = list(watches)
        self.since: list[str] = []

    async def request(
        self, method: str, path: str, body: JSON | None = None, *, content_type: str = "", **query: str
    ) -> JSON:
        return {"metadata": {"resourceVersion": "5"}, "items": []}

    async def watch(self, path: str, since: str) -> AsyncIterator[bytes]:
        self.since.append(since)
        for line in self.watches.pop(0):
            yield line


def line(kind: str, version: int) -> bytes:
    return b'{"type": "%s", "object": {"metadata": {"name": "x", "resourceVersion": "%d"}}}' % (kind.encode(), version)


async def test_after_the_end_of_a_watch_it_goes_on_from_the_last_version() -> None:
    session = Scripted([line("ADDED", 6), line("BOOKMARK", 8)], [line("MODIFIED", 9)])
    async with aclosing(changes(session, "/things", ConfigMap)) as following:
        versions = [(await anext(following)).version for _ in range(2)]
    assert versions == [6, 9]
    assert session.since == ["5", "8"]


async def test_a_history_that_the_server_has_forgotten_is_an_error() -> None:
    gone = b'{"type": "ERROR", "object": {"kind": "Status", "code": 410, "metadata": {}}}'
    with pytest.raises(AssertionError, match="a gap in /things"):
        await anext(changes(Scripted([gone]), "/things", ConfigMap))
