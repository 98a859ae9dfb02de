"""JAX's workers join one collective through what holdfast tells them."""

import asyncio
from pathlib import Path

from holdfast.local.up import LocalCluster
from tests.control_plane.ports import free_ports
from tests.frameworks.jobs import PROGRAMS, said


def worker(python: Path, number: int) -> list[str]:
    return [str(python), str(PROGRAMS / "jax_sum.py"), str(number)]


async def test_two_jax_workers_sum_over_both(box: LocalCluster, jax_python: Path) -> None:
    (port,) = free_ports(1)
    lines = await said(box, "jax", framework="jax", command=worker(jax_python, 1), port=port)
    assert lines == ["worker 0 of 2: 3", "worker 1 of 2: 3"]


async def test_two_jax_jobs_with_one_port_each_sum_over_their_own_workers(box: LocalCluster, jax_python: Path) -> None:
    (port,) = free_ports(1)
    ones, tens = await asyncio.gather(
        said(box, "jax-ones", framework="jax", command=worker(jax_python, 1), port=port),
        said(box, "jax-tens", framework="jax", command=worker(jax_python, 10), port=port),
    )
    assert ones == ["worker 0 of 2: 3", "worker 1 of 2: 3"]
    assert tens == ["worker 0 of 2: 21", "worker 1 of 2: 21"]
