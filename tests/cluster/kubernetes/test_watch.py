"""Watches over connections that are cut, split, silent or old."""

import asyncio
import gc
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.cluster.errors import Expired, Forbidden, ServerError, Undecodable, Unreachable
from holdfast.cluster.kubernetes.client import KubernetesCluster
from holdfast.cluster.kubernetes.transport import Timeouts
from holdfast.cluster.protocol import Change, Event

from .conftest import client, config_for
from .faulty import FaultyServer, answer, cut, silence, status, stream
from .kinds import CONFIG_MAPS, ConfigMap, config_map


def line(change: str, obj: object) -> bytes:
    return msgspec.json.encode({"type": change, "object": obj}) + b"\n"


def bookmark(version: int) -> bytes:
    return line("BOOKMARK", {"kind": "ConfigMap", "metadata": {"resourceVersion": str(version)}})


LIFE = (
    line("ADDED", config_map("a", 2)),
    line("MODIFIED", config_map("a", 3, colour="red")),
    bookmark(5),
    line("DELETED", config_map("a", 6)),
)


@pytest.fixture
async def server() -> AsyncIterator[FaultyServer]:
    server = FaultyServer()
    async with server.running():
        yield server


@pytest.fixture
async def cluster(server: FaultyServer, tmp_path: Path) -> AsyncIterator[KubernetesCluster]:
    async with client(config_for(tmp_path, server.url)) as cluster:
        yield cluster


async def watched(cluster: KubernetesCluster) -> list[Event[ConfigMap]]:
    async with cluster.watch(CONFIG_MAPS, resource_version="1") as events:
        return [event async for event in events]


def summary(events: list[Event[ConfigMap]]) -> list[tuple[Change, str]]:
    return [(event.change, event.resource_version) for event in events]


LIFE_SUMMARY = [(Change.ADDED, "2"), (Change.MODIFIED, "3"), (Change.BOOKMARK, "5"), (Change.DELETED, "6")]


async def test_every_change_comes_in_order_until_the_server_ends_the_stream(
    server: FaultyServer, cluster: KubernetesCluster
) -> None:
    server.then(stream(*LIFE))
    events = await watched(cluster)
    assert summary(events) == LIFE_SUMMARY
    assert events[1].object is not None
    assert events[1].object.data == {"colour": "red"}
    assert events[2].object is None


async def test_it_asks_for_bookmarks_and_an_end_within_ten_minutes(
    server: FaultyServer, cluster: KubernetesCluster
) -> None:
    server.then(*[stream()] * 20)
    for _ in range(20):
        async with cluster.watch(
            CONFIG_MAPS, resource_version="41", namespace="ml", labels="a=b", fields="c=d"
        ) as events:
            assert [event async for event in events] == []
    ends = {int(request.query.pop("timeoutSeconds")) for request in server.requests}
    assert all(300 <= end <= 600 for end in ends)
    assert len(ends) > 1
    [request, *_] = server.requests
    query = request.query
    del query["timeoutSeconds"]
    assert query == {
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": "41",
        "labelSelector": "a=b",
        "fieldSelector": "c=d",
    }
    assert request.path == "/api/v1/namespaces/ml/configmaps"
    assert request.header("Accept-Encoding") == "identity"


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(st.integers(min_value=0, max_value=sum(map(len, LIFE))), max_size=40))
async def test_chunks_may_be_cut_anywhere(server: FaultyServer, cluster: KubernetesCluster, places: list[int]) -> None:
    content = b"".join(LIFE)
    edges = [0, *sorted(places), len(content)]
    server.then(stream(*(content[start:end] for start, end in pairwise(edges))))
    assert summary(await watched(cluster)) == LIFE_SUMMARY


async def test_an_object_may_be_as_large_as_the_server_takes(server: FaultyServer, cluster: KubernetesCluster) -> None:
    content = line("ADDED", config_map("a", 2, big="x" * 3_000_000)) + bookmark(3)
    chunks = [content[start : start + 50_000] for start in range(0, len(content), 50_000)]
    server.then(stream(*chunks))
    large, after = await watched(cluster)
    assert large.object is not None
    assert len(large.object.data["big"]) == 3_000_000
    assert after.resource_version == "3"


async def test_events_arrive_while_the_stream_is_open(server: FaultyServer, cluster: KubernetesCluster) -> None:
    end = asyncio.Event()
    server.then(stream(LIFE[0], hold=end))
    async with cluster.watch(CONFIG_MAPS, resource_version="1") as events:
        assert (await anext(events)).change is Change.ADDED
        end.set()
        with pytest.raises(StopAsyncIteration):
            await anext(events)


@pytest.mark.parametrize("last", [b"", LIFE[1][:20], LIFE[1].rstrip()])
async def test_a_connection_that_is_cut_is_not_an_end(
    server: FaultyServer, cluster: KubernetesCluster, last: bytes
) -> None:
    server.then(stream(LIFE[0], last, end=False))
    async with cluster.watch(CONFIG_MAPS, resource_version="1") as events:
        assert (await anext(events)).change is Change.ADDED
        with pytest.raises(Unreachable, match=r"watch configmaps: .* broke off"):
            await anext(events)


async def test_a_stream_that_ends_within_a_line_was_cut(server: FaultyServer, cluster: KubernetesCluster) -> None:
    server.then(stream(LIFE[0], LIFE[1][:-1]))
    with pytest.raises(Unreachable, match="in the middle of a line"):
        await watched(cluster)


async def test_silence_is_noticed(server: FaultyServer, tmp_path: Path) -> None:
    """A half-open connection says nothing for ever; a live one brings at least a bookmark a minute."""
    server.then(stream(LIFE[0], hold=asyncio.Event()))
    async with (
        client(config_for(tmp_path, server.url), timeouts=Timeouts(idle_timeout_s=0.5)) as cluster,
        cluster.watch(CONFIG_MAPS, resource_version="1") as events,
    ):
        assert (await anext(events)).change is Change.ADDED
        with pytest.raises(Unreachable, match="did not answer in time"):
            await anext(events)


async def test_silence_before_the_first_word_is_noticed(server: FaultyServer, tmp_path: Path) -> None:
    server.then(silence)
    async with client(config_for(tmp_path, server.url), timeouts=Timeouts(idle_timeout_s=0.2)) as cluster:
        with pytest.raises(Unreachable, match="did not answer in time"):
            await watched(cluster)


async def test_a_version_that_is_too_old_has_expired_however_it_is_said(
    server: FaultyServer, cluster: KubernetesCluster
) -> None:
    gone = status(410, "Expired", "too old resource version: 1 (99)")
    server.then(answer(410, gone), stream(line("ERROR", gone)), stream(line("ERROR", status(410, "Gone", "gone"))))
    for _ in range(3):
        with pytest.raises(Expired, match="watch configmaps: "):
            await watched(cluster)


async def test_another_error_in_the_stream_is_that_error(server: FaultyServer, cluster: KubernetesCluster) -> None:
    server.then(stream(LIFE[0], line("ERROR", status(500, "InternalError", "etcd is gone"))))
    with pytest.raises(ServerError, match="watch configmaps: etcd is gone"):
        await watched(cluster)
    server.then(stream(line("ERROR", "what?")))
    with pytest.raises(ServerError, match="watch configmaps: "):
        await watched(cluster)


async def test_a_watch_that_is_not_permitted_says_so(server: FaultyServer, cluster: KubernetesCluster) -> None:
    server.then(answer(403, status(403, "Forbidden", "cannot watch")))
    with pytest.raises(Forbidden):
        await watched(cluster)


async def test_beginning_a_watch_is_tried_again(server: FaultyServer, cluster: KubernetesCluster) -> None:
    server.then(cut, answer(429, Retry_After="0"), answer(401), stream(*LIFE))
    assert summary(await watched(cluster)) == LIFE_SUMMARY


@pytest.mark.parametrize("change", ["ADDED", "MODIFIED"])
async def test_an_object_that_does_not_fit_is_a_step_without_an_object(
    server: FaultyServer, tmp_path: Path, change: str
) -> None:
    counted: list[str] = []
    strange = {**config_map("strange", 2), "data": ["no map"]}
    server.then(stream(line(change, strange), LIFE[1]))
    async with client(config_for(tmp_path, server.url), on_undecodable=counted.append) as cluster:
        events = await watched(cluster)
    assert summary(events) == [(Change.BOOKMARK, "2"), (Change.MODIFIED, "3")]
    assert events[0].object is None
    assert counted == ["configmaps"]


async def test_after_an_unreadable_object_was_deleted_one_must_list_again(
    server: FaultyServer, cluster: KubernetesCluster
) -> None:
    """A cache may hold a version of it from before it became unreadable."""
    server.then(stream(line("DELETED", {**config_map("strange", 2), "data": ["no map"]})))
    with pytest.raises(Expired, match="deleted that can't be read"):
        await watched(cluster)


@pytest.mark.parametrize("content", [b"<html>\n", b"[]\n", b'{"type":"ADDED"}\n', line("RENAMED", config_map("a"))])
async def test_what_is_not_an_event_is_refused(
    server: FaultyServer, cluster: KubernetesCluster, content: bytes
) -> None:
    server.then(stream(content))
    with pytest.raises(Undecodable, match="watch configmaps: "):
        await watched(cluster)


async def test_a_watch_that_is_left_early_closes_the_connection(
    server: FaultyServer, cluster: KubernetesCluster
) -> None:
    for _ in range(3):
        server.then(stream(*LIFE, hold=asyncio.Event()))
        async with cluster.watch(CONFIG_MAPS, resource_version="1") as events:
            assert (await anext(events)).change is Change.ADDED
    assert server.connections == 3
    gc.collect()  # a generator or connection left open would warn now, and warnings are errors


async def test_a_watch_that_is_cancelled_leaves_nothing_open(server: FaultyServer, cluster: KubernetesCluster) -> None:
    server.then(stream(LIFE[0], hold=asyncio.Event()))
    seen = asyncio.Event()

    async def follow() -> None:
        async with cluster.watch(CONFIG_MAPS, resource_version="1") as events:
            async for _ in events:
                seen.set()

    following = asyncio.create_task(follow())
    await seen.wait()
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    gc.collect()


async def test_an_error_of_the_caller_of_a_watch_stays_the_callers(
    server: FaultyServer, cluster: KubernetesCluster
) -> None:
    async def fail() -> None:
        async with cluster.watch(CONFIG_MAPS, resource_version="1") as events:
            async for _ in events:
                raise TimeoutError("my own")

    server.then(stream(*LIFE))
    with pytest.raises(TimeoutError, match="my own"):
        await fail()


async def test_many_watches_don_t_keep_requests_waiting(server: FaultyServer, cluster: KubernetesCluster) -> None:
    """Each holds a connection, so a pool with a limit would run out of them."""
    async with asyncio.TaskGroup() as group:
        end = asyncio.Event()
        server.then(*[stream(LIFE[0], hold=end)] * 150)
        begun = asyncio.Semaphore(0)

        async def follow() -> None:
            async with cluster.watch(CONFIG_MAPS, resource_version="1") as events:
                await anext(events)
                begun.release()
                async for _ in events:
                    pass

        for _ in range(150):
            group.create_task(follow())
        for _ in range(150):
            await begun.acquire()
        server.then(answer(200, {"metadata": {"name": "a"}}))
        await cluster.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace="ml")
        end.set()
