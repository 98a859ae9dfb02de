"""An operator that is away for long: what it misses waits in files, and reaches it in order."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from holdfast.sidecar import http, outbox, reporter
from holdfast.sidecar.background import TensorboardSync
from holdfast.sidecar.progress import NAMES
from holdfast.sidecar.settings import SidecarSettings
from holdfast.sidecar.sidecar import Clocks, Sidecar
from tests.control_plane.ports import free_ports
from tests.sidecar.operators import OperatorDouble, until

# Of a day with an epoch every few seconds, each with some numbers: several times what may be in memory.
EPOCHS = 20_000


@pytest.fixture
async def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OperatorDouble]:
    monkeypatch.setattr(reporter, "GAP_S", 0.0)
    folder = tmp_path / "operator"
    folder.mkdir()
    async with OperatorDouble(folder).serving() as double:
        double.status = 503
        yield double


def told(epochs: range) -> Iterator[str]:
    for epoch in epochs:
        numbers = {f"number_{number}": epoch / (number + 1) for number in range(8)}
        yield json.dumps({"epoch": epoch, "epochs": EPOCHS, "loss": 1 / epoch, **numbers}) + "\n"


@asynccontextmanager
async def running(folder: Path, operator: OperatorDouble, *, progress_port: int = 0) -> AsyncIterator[Sidecar]:
    settings = SidecarSettings(
        job="digits",
        namespace="ml",
        uid="uid-1",
        attempt=0,
        index=0,
        progress_file=folder / "progress.jsonl",
        state_dir=folder / "state",
        metric_names=NAMES,
        reports_file=operator.reports_file,
        token_file=operator.token_file,
        report_s=1.0,
        host="127.0.0.1",
        port=0,
        progress_port=progress_port,
        termination_log=folder / "message",
    )
    stop = asyncio.Event()
    sidecar = Sidecar(settings, {}, clocks=Clocks(time.time), run_id="run-1")
    task = asyncio.create_task(sidecar.run(stop))
    try:
        yield sidecar
    finally:
        stop.set()
        await task


def heard(operator: OperatorDouble) -> list[int]:
    return [entry.epoch for entry in operator.progress if entry.step is None]


def newest(operator: OperatorDouble) -> int:
    entries = operator.batches[-1].progress if operator.batches else ()
    return entries[-1].epoch if entries else 0


async def test_a_day_of_epochs_stays_in_its_file_and_reaches_the_operator_whole(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    with (tmp_path / "progress.jsonl").open("w") as file:
        file.writelines(told(range(1, EPOCHS + 1)))
    async with running(tmp_path, operator) as sidecar:
        held = sidecar._outbox
        await until(lambda: held.is_full and len(operator.bodies) > 2)
        assert held._bytes <= outbox.MOST_BYTES < (tmp_path / "progress.jsonl").stat().st_size
        operator.status = 200
        await until(lambda: newest(operator) == EPOCHS)
        assert held.dropped_epochs == 0
    assert list(dict.fromkeys(heard(operator))) == list(range(1, EPOCHS + 1)), "each of them, in order"
    assert operator.epochs[EPOCHS].metrics["loss"] == 1 / EPOCHS


async def test_so_does_what_was_posted(
    tmp_path: Path, operator: OperatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "FULL_BYTES", 20_000)
    (port,) = free_ports(1)
    async with running(tmp_path, operator, progress_port=port) as sidecar:
        await until(lambda: bool(operator.bodies))
        async with aiohttp.ClientSession() as session:
            for first in range(1, 2001, 100):
                body = "".join(told(range(first, first + 100)))
                async with session.post(f"http://127.0.0.1:{port}/progress", data=body) as response:
                    assert response.status == 204
        await until(lambda: sidecar._outbox.is_full)
        operator.status = 200
        await until(lambda: newest(operator) == 2000)
    assert list(dict.fromkeys(heard(operator))) == list(range(1, 2001))


async def test_a_training_that_ends_while_the_operator_is_away_leaves_its_last_word(
    tmp_path: Path, operator: OperatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "FULL_BYTES", 20_000)
    async with running(tmp_path, operator):
        with (tmp_path / "progress.jsonl").open("w") as file:
            file.writelines(told(range(1, 2001)))
        await until(lambda: bool(operator.bodies))
    assert json.loads((tmp_path / "message").read_text())["progress"]["epoch"] == 2000


async def test_the_last_word_is_left_before_what_may_take_longer_than_there_is_time(
    tmp_path: Path, operator: OperatorDouble
) -> None:
    found: list[bool] = []

    class Slow(TensorboardSync):
        def __init__(self) -> None:
            """Without a store."""

        def upload_new(self) -> None:
            found.append((tmp_path / "message").exists())

    async with running(tmp_path, operator) as sidecar:
        await until(lambda: bool(operator.bodies))
        sidecar._tensorboard_sync = Slow()
    assert found == [True]


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("10.0.0.5", ["10.0.0.5", "127.0.0.1"]),
        ("fd00::5", ["fd00::5", "127.0.0.1"]),
        ("127.3.2.1", ["127.3.2.1"]),
        ("::1", ["::1"]),
        ("", [""]),
    ],
)
def test_the_loopback_is_a_pod_s_own_where_its_address_is_another(host: str, addresses: list[str]) -> None:
    assert http.own_addresses(host) == addresses
