"""Clients to servers that misbehave, and to the real one."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from holdfast.cluster.kubernetes.client import KubernetesCluster, connect
from holdfast.cluster.kubernetes.kubeconfig import Config, load_config
from holdfast.cluster.kubernetes.retries import RetryLimits
from holdfast.cluster.kubernetes.transport import Observe, Timeouts
from tests.control_plane.certificates import Authority

# As patient as the real one in tries, with waits that a test can afford.
QUICK = RetryLimits(first_backoff_s=0.001, longest_backoff_s=0.01)


def wall_clock() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def client(
    config: Config,
    *,
    now: Callable[[], datetime] = wall_clock,
    observe: Observe | None = None,
    on_undecodable: Callable[[str], None] | None = None,
    timeouts: Timeouts | None = None,
    patience: RetryLimits = QUICK,
) -> AsyncIterator[KubernetesCluster]:
    cluster = connect(
        config,
        rng=Random(1),
        now=now,
        observe=observe,
        on_undecodable=on_undecodable,
        timeouts=timeouts or Timeouts(),
        retry_limits=patience,
    )
    try:
        yield cluster
    finally:
        await cluster.close()


def write_kubeconfig(path: Path, *, cluster: dict[str, Any], user: dict[str, Any] | None = None) -> Path:
    """A kubeconfig with one context, named test like all that is in it."""
    content = {
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def config_for(folder: Path, url: str, user: dict[str, Any] | None = None, **cluster: Any) -> Config:
    """How to reach `url`; keyword arguments are the cluster's settings, with underscores for dashes."""
    settings = {name.replace("_", "-"): value for name, value in cluster.items()}
    path = write_kubeconfig(folder / "kubeconfig", cluster={"server": url, **settings}, user=user)
    return load_config(str(path), environ={})


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    folder = tmp_path / "authority"
    folder.mkdir()
    return Authority(folder, wall_clock())
