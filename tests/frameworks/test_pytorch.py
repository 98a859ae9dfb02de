"""PyTorch's workers join one collective over gloo through what holdfast tells them."""

import asyncio
from pathlib import Path

from holdfast.local.up import LocalCluster
from tests.control_plane.ports import free_ports
from tests.frameworks.jobs import PROGRAMS, said

PROGRAM = str(PROGRAMS / "torch_sum.py")
# On Python 3.11, torchrun 1.13 takes its own defaults of these two for None; a rank that is not there changes nothing.
TORCHRUN_113 = [{"name": "PET_REDIRECTS", "value": "9:1"}, {"name": "PET_TEE", "value": "9:1"}]


def worker(python: Path, number: int) -> list[str]:
    return [str(python), PROGRAM, str(number)]


async def test_two_pytorch_workers_sum_over_both(box: LocalCluster, torch_python: Path) -> None:
    (port,) = free_ports(1)
    lines = await said(box, "torch", framework="pytorch", command=worker(torch_python, 1), port=port)
    assert lines == ["worker 0 of 2: 3", "worker 1 of 2: 3"]


async def test_two_pytorch_jobs_with_one_port_each_sum_over_their_own_workers(
    box: LocalCluster, torch_python: Path
) -> None:
    (port,) = free_ports(1)
    ones, tens = await asyncio.gather(
        said(box, "torch-ones", framework="pytorch", command=worker(torch_python, 1), port=port),
        said(box, "torch-tens", framework="pytorch", command=worker(torch_python, 10), port=port),
    )
    assert ones == ["worker 0 of 2: 3", "worker 1 of 2: 3"]
    assert tens == ["worker 0 of 2: 21", "worker 1 of 2: 21"]


async def test_torchrun_starts_its_workers_with_our_variables(box: LocalCluster, torch_python: Path) -> None:
    (port,) = free_ports(1)
    torchrun = [str(torch_python), "-m", "torch.distributed.run", PROGRAM, "1"]
    lines = await said(box, "torchrun", framework="pytorch", command=torchrun, port=port, env=TORCHRUN_113)
    assert lines == ["worker 0 of 2: 3", "worker 1 of 2: 3"]
