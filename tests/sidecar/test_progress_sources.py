"""Progress from a file, and from a page of metrics that a training really serves."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from holdfast.api.reports import ProgressReport
from holdfast.sidecar.http import serve_app
from holdfast.sidecar.progress import LARGEST_PAGE, NAMES, MetricsScraper, ProgressFileReader, parse_line


def parse(line: bytes) -> ProgressReport:
    return parse_line(line, 7.0)


async def test_lines_are_told_as_they_come_and_bad_ones_are_counted_and_said_once(tmp_path: Path) -> None:
    file, told = tmp_path / "progress.jsonl", list[ProgressReport]()
    lines = ProgressFileReader(file, told.append, parse, is_full=lambda: False)
    assert not await lines.read()
    file.write_text('{"epoch": 1}\nepoch 2 is done\n{"epoch": 2, "loss": 0.5}\n{"loss": 1}\n' + "x" * 70_000 + "\n")
    with capture_logs() as logged:
        assert await lines.read()
        assert not await lines.read()
    assert told == [ProgressReport(epoch=1, at=7.0), ProgressReport(epoch=2, metrics={"loss": 0.5}, at=7.0)]
    assert lines.rejected_lines == 3
    assert len([line for line in logged if line["log_level"] == "warning"]) == 1


async def test_a_file_that_can_t_be_read_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    lines = ProgressFileReader(tmp_path / "loop", lambda _: None, parse, is_full=lambda: False)
    with capture_logs() as logged:
        assert not await lines.read()
        assert not await lines.read()
    assert (lines.rejected_lines, len(logged)) == (2, 1)


class Training:
    def __init__(self) -> None:
        self.page = b""
        self.status = 200
        self.port = 0


@pytest.fixture
async def training() -> AsyncIterator[Training]:
    served = Training()

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=served.page, status=served.status)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    async with serve_app(app, "127.0.0.1", 0) as served.port:
        yield served


async def test_metrics_are_read_from_where_the_training_serves_them(training: Training) -> None:
    told = list[ProgressReport]()
    page = MetricsScraper(["127.0.0.1"], training.port, NAMES, told.append, lambda: 7.0)
    async with aiohttp.ClientSession() as session:
        training.page = b"training_epoch 1\ntraining_loss 0.5\n"
        await page.read(session)
        await page.read(session)
        training.page = b"training_epoch 2\ntraining_loss 0.25\n\xff\n"
        await page.read(session)
    assert told == [
        ProgressReport(epoch=1, metrics={"loss": 0.5}, at=7.0),
        ProgressReport(epoch=2, metrics={"loss": 0.25}, at=7.0),
    ]


async def test_a_page_that_fails_or_is_huge_tells_nothing(training: Training) -> None:
    told = list[ProgressReport]()
    page = MetricsScraper(["127.0.0.1"], training.port, NAMES, told.append, lambda: 7.0)
    async with aiohttp.ClientSession() as session:
        training.page, training.status = b"training_epoch 1\n", 500
        await page.read(session)
        training.page, training.status = b"training_epoch 1\n" + b"#" * LARGEST_PAGE, 200
        await page.read(session)
        await MetricsScraper(["127.0.0.1"], 1, NAMES, told.append, lambda: 7.0).read(session)
    assert told == []
