"""How busy the GPUs are, from a library as NVIDIA's, and from none."""

from pathlib import Path

import pytest

from holdfast.train.progress import METRIC, GpuMonitor
from tests.train.runs import lines, worker


@pytest.mark.parametrize(
    ("told", "percent"),
    [
        ("40", 40.0),
        ("0", 0.0),
        ("30,70", 50.0),
        ("100,1,1", 34.0),
        ("30,x,70", 50.0),
        ("h,20", 20.0),
        ("x", None),
        ("h", None),
        ("", None),
        ("?", None),
        ("4294967295", None),
    ],
    ids=[
        "one",
        "one that is idle",
        "two",
        "three",
        "one of three does not say",
        "one of two can't be opened",
        "the only one does not say",
        "the only one can't be opened",
        "there is none",
        "they can't be counted",
        "no percentage",
    ],
)
def test_the_mean_is_over_the_gpus_that_report(
    nvml: str, monkeypatch: pytest.MonkeyPatch, told: str, percent: float | None
) -> None:
    monkeypatch.setenv("FAKE_NVML", told)
    assert GpuMonitor(nvml).utilization_percent() == percent


def test_a_driver_that_comes_later_is_found(nvml: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML", "!")
    gpus = GpuMonitor(nvml)
    assert gpus.utilization_percent() is None
    monkeypatch.setenv("FAKE_NVML", "25")
    assert (gpus.utilization_percent(), gpus.is_there) == (25.0, True)


@pytest.mark.parametrize("library", ["no-such-library.so.1", "libc.so.6"])
def test_without_the_library_nothing_is_known(library: str) -> None:
    gpus = GpuMonitor(library)
    assert (gpus.utilization_percent(), gpus.is_there) == (None, False)
    assert gpus.utilization_percent() is None


def test_a_line_of_progress_says_how_busy_they_are(nvml: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = worker(tmp_path, gpus=GpuMonitor(nvml))
    for epoch, told in enumerate(("80", "x", "60"), start=1):
        monkeypatch.setenv("FAKE_NVML", told)
        run.report(epoch=epoch, loss=0.5)
    run.report(epoch=4, **{METRIC: 12.0})
    assert [line.get(METRIC) for line in lines(tmp_path)] == [80.0, None, 60.0, 12.0]


def test_where_nothing_is_reported_nobody_asks(nvml: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NVML", "80")
    gpus = GpuMonitor(nvml)
    worker(tmp_path, rank=1, world=2, gpus=gpus).report(epoch=1, loss=0.5)
    worker(tmp_path, PROGRESS_FILE="", gpus=gpus).report(epoch=1, loss=0.5)
    assert lines(tmp_path) == []
