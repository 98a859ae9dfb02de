"""The utilization of a worker's GPUs, from its training and from NVML."""

import asyncio
from pathlib import Path

import pytest

from holdfast.api.reports import ProgressReport
from holdfast.sidecar.progress import GpuUtilization
from holdfast.train.progress import METRIC, GpuMonitor
from tests.sidecar.operators import OperatorDouble, until
from tests.sidecar.pods import Pod, ended


class FakeGpus(GpuMonitor):
    def __init__(self, percent: float | None) -> None:
        super().__init__("no-such-library.so")
        self.percent = percent

    def utilization_percent(self) -> float | None:
        return self.percent


@pytest.mark.parametrize(
    ("seen", "reported", "percent"),
    [
        (None, None, None),
        (0.0, None, 0.0),
        (90.0, None, 90.0),
        (None, 12.0, 12.0),
        (90.0, 12.0, 12.0),
        (90.0, 0.0, 0.0),
        (90.0, 100.1, 90.0),
        (None, -1.0, None),
    ],
)
async def test_what_the_training_reports_counts_else_what_nvml_shows(
    seen: float | None, reported: float | None, percent: float | None
) -> None:
    busy = GpuUtilization(FakeGpus(seen))
    await busy.measure()
    busy.on_progress(ProgressReport(epoch=1, metrics={} if reported is None else {METRIC: reported}, at=1.0))
    busy.on_progress(ProgressReport(epoch=2, metrics={"loss": 0.5}, at=2.0))
    assert busy.percent == percent


async def test_gpus_that_are_gone_are_unknown_and_not_idle() -> None:
    gpus = FakeGpus(40.0)
    busy = GpuUtilization(gpus)
    await busy.measure()
    gpus.percent = None
    await busy.measure()
    assert busy.percent is None


async def test_without_a_library_nobody_looks_again() -> None:
    busy = GpuUtilization(GpuMonitor("no-such-library.so"))
    async with asyncio.timeout(60):
        await busy.run()
    assert busy.percent is None


@pytest.mark.parametrize("index", [0, 1])
async def test_the_sidecar_of_every_worker_reports_what_nvml_shows(tmp_path: Path, nvml: str, index: int) -> None:
    environ = {"LD_LIBRARY_PATH": str(Path(nvml).parent), "FAKE_NVML": "30,70", "CHECKPOINT_DIR": "", "RESUME_FROM": ""}
    async with (
        OperatorDouble(tmp_path).serving() as operator,
        Pod(tmp_path / "volume", tmp_path / "pod", operator, index=index, environ=environ) as pod,
    ):
        sidecar = await pod.sidecar()
        await pod.answers("/started", 200)
        await until(lambda: operator.batches and operator.batches[-1].gpu_utilization_percent == 50.0)
        assert await pod.post(f'{{"epoch": 1, "{METRIC}": 20}}') == 204
        await until(lambda: operator.batches[-1].gpu_utilization_percent == 20.0)
        assert await ended(sidecar) == 0, pod.log("sidecar")
