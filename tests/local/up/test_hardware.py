"""What this machine offers."""

import os
from pathlib import Path

import pytest

from holdfast.local.host import Hardware, detect_hardware


def test_processors_and_memory_are_those_of_this_machine() -> None:
    found = detect_hardware(gpus=0)
    assert found.cpus == len(os.sched_getaffinity(0))
    assert 0 < found.memory_mib * 1024 <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024


def test_gpus_are_what_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '0\\n1\\n2\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert detect_hardware().gpus == 3


def test_without_a_driver_there_are_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'no devices were found' >&2\nexit 6\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert detect_hardware().gpus == 0
    monkeypatch.setenv("PATH", "/nowhere")
    assert detect_hardware().gpus == 0


def test_gpus_can_be_pretended() -> None:
    assert detect_hardware(gpus=8).resources["nvidia.com/gpu"] == "8"


def test_a_machine_without_gpus_offers_none() -> None:
    assert "nvidia.com/gpu" not in Hardware(cpus=2, memory_mib=1024, gpus=0).resources
