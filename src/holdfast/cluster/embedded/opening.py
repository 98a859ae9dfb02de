"""Opening an embedded cluster with what every cluster has from the start."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

from holdfast.api.crd import crd_manifest
from holdfast.api.kinds import KINDS
from holdfast.api.meta import Key, Object
from holdfast.cluster.embedded.engine import BOOKMARK_S, WINDOW, EmbeddedCluster, FollowLogs, PodLogs
from holdfast.cluster.errors import AlreadyExists
from holdfast.cluster.protocol import JSON, Resource
from holdfast.cluster.resources import NAMESPACES, PRIORITY_CLASSES

SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
FIRST_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


class _Definition(Object, frozen=True, kw_only=True):
    spec: JSON


_DEFINITIONS = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    kind="CustomResourceDefinition",
    plural="customresourcedefinitions",
    model=_Definition,
    namespaced=False,
)


async def open_cluster(
    path: Path | None,
    *,
    now: Callable[[], datetime],
    rng: Random,
    pod_logs: PodLogs | None = None,
    follow_logs: FollowLogs | None = None,
    window: int = WINDOW,
    bookmark_s: float = BOOKMARK_S,
) -> EmbeddedCluster:
    """The cluster in the database at `path`, made if there is none; without a path it lives in memory.

    It serves Kubernetes' own kinds that holdfast uses, and holdfast's. Raises `Unusable` when the file can't be used.
    """
    cluster = EmbeddedCluster(
        path,
        now=now,
        rng=rng,
        pod_logs=pod_logs,
        follow_logs=follow_logs,
        window=window,
        bookmark_s=bookmark_s,
    )
    try:
        for name in FIRST_NAMESPACES:
            await _ensure(cluster, NAMESPACES, {"metadata": {"name": name}})
        for name, value in SYSTEM_PRIORITIES.items():
            await _ensure(cluster, PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
        await _define(cluster, map(crd_manifest, KINDS))
    except BaseException:
        await cluster.close()
        raise
    return cluster


async def _ensure(cluster: EmbeddedCluster, resource: Resource[Any], body: JSON) -> None:
    with suppress(AlreadyExists):
        await cluster.create(resource, body)


async def _define(cluster: EmbeddedCluster, definitions: Iterable[JSON]) -> None:
    """Define the kinds anew where this release's definition is not the stored one."""
    known = {each.metadata.name: each for each in (await cluster.list(_DEFINITIONS)).items}
    for wanted in definitions:
        stored = known.get(wanted["metadata"]["name"])
        if stored is None:
            await cluster.create(_DEFINITIONS, wanted)
        else:
            kept = {"finalizers": stored.metadata.finalizers, "resourceVersion": stored.metadata.resource_version}
            updated = {**wanted, "metadata": wanted["metadata"] | kept}
            await cluster.replace(_DEFINITIONS, Key("", stored.metadata.name), updated)
