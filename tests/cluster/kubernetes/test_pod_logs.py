"""Logs that go on: over connections that are silent, cut, or left."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import BadRequest, Unreachable
from holdfast.cluster.kubernetes.client import KubernetesCluster
from holdfast.cluster.kubernetes.transport import Timeouts

from .conftest import client, config_for
from .faulty import FaultyServer, answer, status, stream

POD = Key("ml", "bert-0")


async def whole(cluster: KubernetesCluster, **options: Any) -> bytes:
    return b"".join([chunk async for chunk in cluster.follow_log(POD, **options)])


async def test_a_log_comes_as_it_is_written_byte_for_byte(tmp_path: Path) -> None:
    server = FaultyServer(stream(b"\xff one\n\n", b"tw", b"o"))
    async with server.running() as url, client(config_for(tmp_path, url)) as cluster:
        assert await whole(cluster, container="c", tail_lines=0) == b"\xff one\n\ntwo"
    (request,) = server.requests
    assert request.path == "/api/v1/namespaces/ml/pods/bert-0/log"
    assert request.query == {"follow": "true", "container": "c", "tailLines": "0"}


async def test_a_log_may_be_silent_for_longer_than_a_watch(tmp_path: Path) -> None:
    release = asyncio.Event()
    server = FaultyServer(stream(b"one\n", hold=release))
    brief = Timeouts(idle_timeout_s=0.05, request_s=0.05)
    async with (
        server.running() as url,
        client(config_for(tmp_path, url), timeouts=brief) as cluster,
        aclosing(cluster.follow_log(POD)) as chunks,
    ):
        assert await anext(chunks) == b"one\n"
        rest = asyncio.ensure_future(anext(chunks, b""))
        done, _ = await asyncio.wait([rest], timeout=0.3)
        assert not done
        release.set()
        assert await rest == b""


async def test_a_log_that_is_cut_off_is_not_taken_for_ended(tmp_path: Path) -> None:
    server = FaultyServer(stream(b"one\n", end=False))
    async with server.running() as url, client(config_for(tmp_path, url)) as cluster:
        with pytest.raises(Unreachable, match="follow the log of pod ml/bert-0"):
            await whole(cluster)


async def test_a_refusal_comes_before_the_first_byte(tmp_path: Path) -> None:
    server = FaultyServer(answer(400, status(400, "BadRequest", "a container name must be specified")))
    async with server.running() as url, client(config_for(tmp_path, url)) as cluster:
        with pytest.raises(BadRequest, match="a container name must be specified"):
            await whole(cluster)
