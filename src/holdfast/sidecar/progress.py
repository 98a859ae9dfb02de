"""The sources of a training's progress: JSON lines of PROGRESS_FILE or of a request, Prometheus metrics, and NVML."""

import asyncio
import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import aiohttp
import structlog

from holdfast.api.reports import LARGEST_EPOCH, MOST_METRICS, ProgressReport
from holdfast.errors import HoldfastError
from holdfast.peers import is_own_server
from holdfast.train.progress import METRIC, GpuMonitor

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


# The same bounds as in api/reports.py.
LARGEST = 2**53
HUGE = 3.5e38
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,63}", re.ASCII)
TOTALS = ("totalEpochs", "epochs", "total_epochs")
STEPS = ("steps", "totalSteps", "total_steps")
POSITION_KEYS = frozenset(("epoch", "step", *TOTALS, *STEPS))


class InvalidProgress(HoldfastError):
    """A line holds no progress that could be reported."""


def parse_line(line: bytes, at: float) -> ProgressReport:
    """The progress in a line, without the numbers that no report can carry."""
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidProgress("it is not JSON") from None
    if not isinstance(facts, dict):
        raise InvalidProgress("it is not a JSON object")
    return progress({name: value for name, value in facts.items() if type(value) in (int, float)}, at)


def progress(numbers: Mapping[str, float], at: float) -> ProgressReport:
    epoch = _count(numbers.get("epoch"), LARGEST_EPOCH)
    if epoch is None:
        raise InvalidProgress("it has no epoch, a whole number of at least 0")
    return ProgressReport(
        epoch=epoch,
        total_epochs=_first(numbers, TOTALS, LARGEST_EPOCH),
        step=_count(numbers.get("step")),
        steps=_first(numbers, STEPS),
        metrics=_metrics(numbers),
        at=at,
    )


def _metrics(numbers: Mapping[str, float]) -> dict[str, float]:
    usable = {
        name: float(value)
        for name, value in numbers.items()
        if name not in POSITION_KEYS and NAME.fullmatch(name) and -HUGE <= value <= HUGE
    }
    return dict(list(usable.items())[:MOST_METRICS])


def _first(numbers: Mapping[str, float], names: tuple[str, ...], most: int = LARGEST) -> int | None:
    """The first of these totals that is above 0: a total of 0 is not known yet."""
    return next((count for name in names if (count := _count(numbers.get(name), most))), None)


def _count(value: float | None, most: int = LARGEST) -> int | None:
    if value is None or not 0 <= value <= most or value != int(value):
        return None
    return int(value)


# Reads the lines that are appended to a file, also when the file is truncated, replaced, or does not exist yet.

READ_BYTES = 256 << 10
LINE_BYTES = 64 << 10


class Tail:
    """The tail of a file that another process writes. `too_long` counts lines that no report could hold."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor: int | None = None
        self._offset = 0
        self._rest = b""
        self._is_skipping = False
        self.too_long = 0

    def lines(self) -> list[bytes]:
        """The lines that were completed since the last call; a partial line is buffered for the next call."""
        if self._descriptor is None and not self._open():
            return []
        lines = self._read()
        # A renamed file is read to its end before the file that replaces it.
        if not lines and self._is_replaced():
            self.close()
            return self._read() if self._open() else []
        return lines

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._offset, self._rest, self._is_skipping = None, 0, b"", False

    def _open(self) -> bool:
        try:
            # Without O_NONBLOCK, opening a pipe would wait for its writer.
            descriptor = os.open(self._file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def _read(self) -> list[bytes]:
        assert self._descriptor is not None
        if os.fstat(self._descriptor).st_size < self._offset:  # truncated: what follows is new
            self._offset, self._rest, self._is_skipping = 0, b"", False
        content = os.pread(self._descriptor, READ_BYTES, self._offset)
        self._offset += len(content)
        *ended, rest = (self._rest + content).split(b"\n")
        if ended and self._is_skipping:
            self._is_skipping = False
            del ended[0]
        self._rest = b"" if self._is_skipping else rest
        if len(self._rest) > LINE_BYTES:
            self._rest, self._is_skipping = b"", True
            self.too_long += 1
        whole = [line for line in ended if len(line) <= LINE_BYTES]
        self.too_long += len(ended) - len(whole)
        return [line for line in whole if line.strip()]

    def _is_replaced(self) -> bool:
        assert self._descriptor is not None
        try:
            current = self._file.stat()
        except FileNotFoundError:
            return False
        opened = os.fstat(self._descriptor)
        return (current.st_dev, current.st_ino) != (opened.st_dev, opened.st_ino)


# Progress from the Prometheus metrics that a training serves.
#
# With a `training_step`, `training_epoch` is the current epoch; without one, the number of completed epochs. A change
# between two scrapes is not seen.

# The metric for each reported name; HOLDFAST_METRIC_NAMES changes and adds to these.
NAMES: Mapping[str, str] = {
    "epoch": "training_epoch",
    "epochs": "training_epochs_total",
    "step": "training_step",
    "steps": "training_steps_total",
    "loss": "training_loss",
    "accuracy": "training_accuracy",
}


def read_samples(text: str, names: Mapping[str, str]) -> dict[str, float]:
    """The requested samples; of several samples with one name the first, whatever its labels are."""
    found: dict[str, float] = {}
    wanted = frozenset(names.values())
    for line in text.splitlines():
        if line.startswith("#") or not line.startswith(tuple(wanted)):
            continue
        for name, value in _samples(line):
            if name in wanted:
                found.setdefault(name, value)
    return {name: found[metric] for name, metric in names.items() if metric in found}


def _samples(line: str) -> list[tuple[str, float]]:
    # Imported late: most trainings serve no metrics, and every sidecar would load the parser.
    from prometheus_client.parser import text_string_to_metric_families

    try:
        families = list(text_string_to_metric_families(f"{line}\n"))
    except (ValueError, IndexError, KeyError):
        return []
    return [(sample.name, sample.value) for family in families for sample in family.samples]


class ScrapeState:
    """Finds the new entries of successive scrapes."""

    def __init__(self) -> None:
        self._before: ProgressReport | None = None

    def new_entries(self, numbers: Mapping[str, float], at: float) -> list[ProgressReport]:
        try:
            now = progress(numbers, at)
        except InvalidProgress:
            return []
        before, self._before = self._before, now
        if before is not None and (before.epoch, before.step, before.metrics) == (now.epoch, now.step, now.metrics):
            return []
        if before is None or before.step is None or now.step is None or now.epoch <= before.epoch:
            return [now]
        return [_epoch_end(before, now.epoch - 1), now]


def _epoch_end(before: ProgressReport, epoch: int) -> ProgressReport:
    """The end of an epoch, with its last scraped metrics. Of epochs between two scrapes only the last is known."""
    metrics = before.metrics if before.epoch == epoch else {}
    return ProgressReport(epoch=epoch, total_epochs=before.total_epochs, metrics=metrics, at=before.at)


# The loops that read progress from PROGRESS_FILE and from Prometheus metrics.

FILE_POLL_S = 0.5
SCRAPE_S = 5.0
WITHIN_S = 4.0
LARGEST_PAGE = 4 << 20

OnProgress: TypeAlias = Callable[[ProgressReport], None]


class ProgressFileReader:
    """Reads a file with progress, such as PROGRESS_FILE. Unusable lines are counted, and logged once.

    While the outbox `is_full`, lines stay in the file.
    """

    def __init__(
        self,
        file: Path,
        on_progress: OnProgress,
        parse: Callable[[bytes], ProgressReport],
        *,
        is_full: Callable[[], bool],
    ) -> None:
        self._file = file
        self._tail = Tail(file)
        self._on_progress = on_progress
        self._parse = parse
        self._is_full = is_full
        self._read_lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self.rejected_lines = 0

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        try:
            while True:
                self._wake.clear()
                if not self._is_full() and await self.read():
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FILE_POLL_S):
                        await self._wake.wait()
        finally:
            self._tail.close()

    async def read(self) -> bool:
        """Whether the file had new lines."""
        try:
            async with self._read_lock:
                lines = await asyncio.to_thread(self._tail.lines)
        except OSError as error:
            self._count(1, f"it can't be read: {error.strerror}")
            return False
        if self._tail.too_long:
            self._count(self._tail.too_long, "a line is too long")
            self._tail.too_long = 0
        for line in lines:
            try:
                self._on_progress(self._parse(line))
            except InvalidProgress as error:
                self._count(1, str(error))
        return bool(lines)

    def _count(self, lines: int, reason: str) -> None:
        if not self.rejected_lines:
            log.warning("a line is not used; this is said once", file=str(self._file), reason=reason)
        self.rejected_lines += lines


class MetricsScraper:
    """Scrapes the metrics that the training serves, once it does, from the first host that answers.

    `shared`: the pod uses the network of a node with other users. Servers of other users are not scraped.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        port: int,
        names: Mapping[str, str],
        on_progress: OnProgress,
        wall: Callable[[], float],
        *,
        shared: bool = False,
    ) -> None:
        self._hosts = hosts
        self._port = port
        self._shared = shared
        self._names = names
        self._on_progress = on_progress
        self._wall = wall
        self._scraped = ScrapeState()

    async def run(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WITHIN_S)) as session:
            while True:
                await self.read(session)
                await asyncio.sleep(SCRAPE_S)

    async def read(self, session: aiohttp.ClientSession) -> None:
        for host in self._hosts:
            if self._shared and not await asyncio.to_thread(is_own_server, host, self._port):
                log.debug("no metrics: another user's server is at the port", host=host, port=self._port)
                continue
            page = await _page(session, f"http://{f'[{host}]' if ':' in host else host}:{self._port}/metrics")
            if page is not None:
                numbers = read_samples(page.decode(errors="replace"), self._names)
                for entry in self._scraped.new_entries(numbers, self._wall()):
                    self._on_progress(entry)
                return


async def _page(session: aiohttp.ClientSession, url: str) -> bytes | None:
    try:
        async with session.get(url, allow_redirects=False) as response:
            return await _read_at_most(response.content, LARGEST_PAGE) if response.status == 200 else None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        log.debug("no metrics", url=url, reason=type(error).__name__)
        return None


async def _read_at_most(content: aiohttp.StreamReader, limit: int) -> bytes | None:
    page = bytearray()
    async for chunk in content.iter_chunked(64 << 10):
        page += chunk
        if len(page) > limit:
            return None
    return bytes(page)


# The utilization of the worker's GPUs: as the training reports it, else as NVML shows it to this container.

GPU_POLL_S = 5.0


class GpuUtilization:
    def __init__(self, gpus: GpuMonitor) -> None:
        self._gpus = gpus
        self._measured: float | None = None
        self._reported: float | None = None

    @property
    def percent(self) -> float | None:
        """None while unknown. The training knows which GPUs it uses: a value that it reports takes precedence."""
        return self._measured if self._reported is None else self._reported

    async def run(self) -> None:
        await self.measure()
        while self._gpus.is_there:
            await asyncio.sleep(GPU_POLL_S)
            await self.measure()

    async def measure(self) -> None:
        """NVML only reads counters of the driver: no GPU memory and no CUDA context is allocated."""
        self._measured = await asyncio.to_thread(self._gpus.utilization_percent)

    def on_progress(self, entry: ProgressReport) -> None:
        percent = entry.metrics.get(METRIC)
        if percent is not None and 0 <= percent <= 100:  # the operator rejects a report with any other value
            self._reported = percent
