"""The cluster that a command talks to.

The cluster is chosen in this order: --kubeconfig or --context, $KUBECONFIG, a `holdfast up` that runs on this host, and
then as in kubectl: ~/.kube/config, and the service account of the pod.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, TypeVar

import typer
from msgspec import Struct

from holdfast.api.meta import Key, Object
from holdfast.cli.errors import errors_as_one_line
from holdfast.cluster.errors import ClusterError, Expired, Misconfigured, NotFound, Unreachable
from holdfast.cluster.login import KUBECONFIG
from holdfast.cluster.protocol import Cluster, Event, Listing, Resource
from holdfast.cluster.resources import KnownKind, RawObject
from holdfast.local.host import default_folder

if TYPE_CHECKING:
    from holdfast.cluster.kubernetes.client import KubernetesCluster
    from holdfast.cluster.kubernetes.kubeconfig import Config


class ClusterOptions(Struct, frozen=True, kw_only=True):
    """The options of the command line about the cluster."""

    kubeconfig: Path | None = None
    context: str = ""
    namespace: str = ""


class Session(Struct, frozen=True, kw_only=True):
    """A cluster and the namespace of a command."""

    cluster: "KubernetesCluster"
    namespace: str
    now: Callable[[], datetime]
    data: Path | None = None
    """The folder of the `holdfast up` that the cluster is; None for any other cluster."""

    async def get(self, known: KnownKind, key: Key) -> RawObject:
        """The object; `NotFound` names the namespace and the command that lists existing objects."""
        try:
            return await self.cluster.get(known.resource, key)
        except NotFound as error:
            if f'"{key.name}" not found' not in str(error):
                raise
            where = f" in namespace {key.namespace}" if key.namespace else ""
            kind = known.short_names[0] if known.short_names else known.resource.plural
            lists = f"holdfast get {kind}{f' -n {key.namespace}' if key.namespace not in ('', 'default') else ''}"
            raise NotFound(f'{known.resource} "{key.name}" not found{where}: `{lists}` shows what is there') from None

    def key(self, known: KnownKind, name: str) -> Key:
        return Key(self.namespace_for(known), name)

    def namespace_for(self, known: KnownKind) -> str:
        return self.namespace if known.resource.namespaced else ""


def run(choice: ClusterOptions, command: Callable[[Session], Awaitable[int]]) -> None:
    """Run a command on the chosen cluster and exit with the exit code of the command."""
    import uvloop

    from holdfast.runtime.process import configure, level_from

    with errors_as_one_line():
        configure(level_from({"LOG_LEVEL": "error", **os.environ}))
        if "LOG_LEVEL" not in os.environ:
            # uvloop logs an error when Ctrl-C closes a TLS connection in the middle of a read.
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        code = uvloop.run(_run(choice, command))
    raise typer.Exit(code)


def load_cluster_config(choice: ClusterOptions, environ: Mapping[str, str]) -> "Config":
    """The configuration of the cluster; raises `Misconfigured` with the paths that were checked."""
    from holdfast.cluster.kubernetes.kubeconfig import load_config

    if choice.kubeconfig or choice.context or environ.get("KUBECONFIG"):
        return load_config(str(choice.kubeconfig or ""), context=choice.context, environ=environ)
    local = _local_kubeconfig(environ)
    if local.exists():
        return load_config(str(local), environ=environ)
    try:
        return load_config(environ=environ)
    except Misconfigured as error:
        other = str(error).removeprefix("no cluster to talk to: ")
        raise Misconfigured(
            f"no `holdfast up` runs on this machine: start it in another terminal; and for another cluster, {other}"
        ) from None


def with_hint(error: ClusterError, config: "Config", environ: Mapping[str, str]) -> ClusterError:
    """The error with a hint, where a command knows more than the client."""
    if isinstance(error, Unreachable) and config.source.startswith(str(_local_kubeconfig(environ))):
        return Unreachable(f"{error}; `holdfast up` has ended without saying so: start it again, or pass --kubeconfig")
    if isinstance(error, NotFound) and "does not serve this kind" in str(error):
        return NotFound(f"{error}: install holdfast's with `holdfast crds | kubectl apply --server-side -f -`")
    return error


async def _run(choice: ClusterOptions, command: Callable[[Session], Awaitable[int]]) -> int:
    from holdfast.cluster.kubernetes.client import connect
    from holdfast.runtime.process import utc_now

    config = load_cluster_config(choice, os.environ)
    cluster = connect(config, rng=SystemRandom(), now=utc_now)
    data = Path(config.server.data) if config.server.data else None
    namespace = choice.namespace or config.namespace
    try:
        return await command(Session(cluster=cluster, namespace=namespace, now=utc_now, data=data))
    except ClusterError as error:
        raise with_hint(error, config, os.environ) from None
    finally:
        await cluster.close()


def _local_kubeconfig(environ: Mapping[str, str]) -> Path:
    return default_folder(environ) / KUBECONFIG


# List and watch, across the ends and gaps of watches.

WATCH_PAUSE_S = 0.2
T = TypeVar("T", bound=Object)


async def follow(
    cluster: Cluster, resource: Resource[T], *, namespace: str = "", labels: str = "", fields: str = ""
) -> AsyncGenerator[Listing[T] | Event[T], None]:
    """Yield a listing, then events; a new listing after a gap in the watch. The generator does not end by itself."""
    while True:
        listing = await cluster.list(resource, namespace=namespace, labels=labels, fields=fields)
        yield listing
        version = listing.resource_version
        with suppress(Expired):
            while True:
                async with cluster.watch(
                    resource, resource_version=version, namespace=namespace, labels=labels, fields=fields
                ) as events:
                    # A broken stream counts as ended; if the server is gone, the next watch request fails.
                    with suppress(Unreachable):
                        async for event in events:
                            version = event.resource_version
                            yield event
                await asyncio.sleep(WATCH_PAUSE_S)


def by_name(name: str) -> str:
    return f"metadata.name={name}"
