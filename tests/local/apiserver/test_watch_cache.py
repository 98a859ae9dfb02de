"""The window of writes, and those who read it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.cluster.errors import Expired
from holdfast.cluster.protocol import Change
from holdfast.local.apiserver.objects import WatchCache
from holdfast.local.apiserver.storage import StoredWrite, stored

NEVER_S = 3600.0


def write(version: int, resource: str = "configmaps") -> StoredWrite:
    metadata = {"name": f"c{version}", "namespace": "default", "uid": str(version)}
    draft = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    return StoredWrite(change=Change.ADDED, old=None, new=stored(resource, draft, version))


def history(*versions: int, at: int = 0, window: int = 100, bookmark_s: float = NEVER_S) -> WatchCache:
    made = WatchCache(at, window=window, bookmark_s=bookmark_s)
    made.append(map(write, versions))
    return made


async def take(stream: AsyncIterator[StoredWrite | None], count: int) -> list[int | None]:
    async with asyncio.timeout(60):
        found = [await anext(stream) for _ in range(count)]
    return [each.version if each else None for each in found]


@pytest.mark.parametrize(("since", "seen"), [(0, [2, 5, 9]), (1, [2, 5, 9]), (2, [5, 9]), (4, [5, 9]), (5, [9])])
async def test_a_reader_gets_what_came_after_its_version(since: int, seen: list[int]) -> None:
    assert await take(history(2, 5, 9).watch_from("configmaps", since), len(seen)) == seen


async def test_a_reader_at_the_end_waits_for_more() -> None:
    log = history(2)
    stream = log.watch_from("configmaps", 2)
    waiting = asyncio.create_task(take(stream, 2))
    await asyncio.sleep(0)
    log.append([write(3), write(4)])
    assert await waiting == [3, 4]


async def test_readers_of_one_kind_do_not_see_another() -> None:
    log = history(2)
    log.append([write(3, "pods"), write(4)])
    assert await take(log.watch_from("configmaps", 0), 2) == [2, 4]
    assert await take(log.watch_from("pods", 0), 1) == [3]


async def test_every_reader_sees_every_write() -> None:
    log = history()
    readers = [asyncio.create_task(take(log.watch_from("configmaps", 0), 50)) for _ in range(5)]
    for version in range(1, 51):
        log.append([write(version)])
        if version % 7 == 0:
            await asyncio.sleep(0)
    assert await asyncio.gather(*readers) == [list(range(1, 51))] * 5


async def test_a_version_before_the_window_is_expired() -> None:
    log = history(1, 2, 3, 4, 5, window=2)
    with pytest.raises(Expired, match=r"too old resource version: 2 \(3\)"):
        await anext(log.watch_from("configmaps", 2))
    assert await take(log.watch_from("configmaps", 3), 2) == [4, 5]


async def test_a_version_from_before_the_opening_is_expired() -> None:
    log = history(at=10)
    with pytest.raises(Expired):
        await anext(log.watch_from("configmaps", 9))
    log.append([write(11)])
    assert await take(log.watch_from("configmaps", 10), 1) == [11]


async def test_a_busy_kind_does_not_make_a_quiet_one_expire() -> None:
    log = history(1, window=2)
    log.append(write(version, "pods") for version in range(2, 50))
    log.append([write(50)])
    assert await take(log.watch_from("configmaps", 1), 1) == [50]


async def test_a_reader_that_falls_behind_the_window_is_cut_off() -> None:
    log = history(1, window=3)
    stream = log.watch_from("configmaps", 0)
    assert await take(stream, 1) == [1]
    log.append(map(write, range(2, 10)))
    assert await anext(stream, None) is None
    with pytest.raises(Expired):
        await anext(log.watch_from("configmaps", 1))


async def test_a_slow_reader_within_the_window_loses_nothing() -> None:
    log = history(1, window=10)
    stream = log.watch_from("configmaps", 0)
    assert await take(stream, 1) == [1]
    log.append(map(write, range(2, 12)))
    assert await take(stream, 10) == list(range(2, 12))


async def test_what_was_forgotten_is_expired_and_readers_go_on() -> None:
    log = history(1, 2)
    stream = log.watch_from("configmaps", 1)
    assert await take(stream, 1) == [2]
    log.compact("configmaps", 5)
    with pytest.raises(Expired):
        await anext(log.watch_from("configmaps", 4))
    log.append([write(6)])
    assert await take(stream, 1) == [6]
    assert await take(log.watch_from("configmaps", 5), 1) == [6]


async def test_a_version_of_the_future_is_waited_for() -> None:
    log = history(1)
    stream = log.watch_from("configmaps", 3)
    log.append(map(write, (2, 3, 4)))
    assert await take(stream, 1) == [4]


async def test_a_quiet_watch_gets_bookmarks() -> None:
    log = history(1, bookmark_s=0.01)
    assert await take(log.watch_from("configmaps", 0), 3) == [1, None, None]


async def test_closing_ends_every_stream() -> None:
    log = history(1)
    waiting = asyncio.create_task(anext(log.watch_from("configmaps", 1), None))
    await asyncio.sleep(0)
    log.close()
    assert await waiting is None
    assert await anext(log.watch_from("configmaps", 0), None) is None
