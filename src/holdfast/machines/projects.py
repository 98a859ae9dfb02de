"""Where machines were made: the projects and credentials that are swept even when no object names them any more.

A ConfigMap beside the operator's Lease holds them. It has names of Secrets, and nothing of what is in them.
"""

import asyncio
import hashlib
from collections.abc import Iterable

import msgspec
import structlog
from msgspec import Struct

from holdfast.api.core.objects import ConfigMap
from holdfast.api.core.pod import ObjectReference
from holdfast.api.meta import Key
from holdfast.cluster.errors import AlreadyExists, NotFound
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CONFIG_MAPS
from holdfast.machines.clouds import Account, account_of

NAME = "holdfast-machine-projects"
LABELS = {"app.kubernetes.io/managed-by": "holdfast"}

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class MachineProject(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A project, the credential for it, and a namespace that may use that credential."""

    project: str
    namespace: str
    secret: ObjectReference | None = None

    @property
    def account(self) -> Account:
        return account_of(self.namespace, self.project, self.secret)

    @property
    def entry(self) -> str:
        """The same for the same account; ConfigMaps do not allow every project's name as a key."""
        account = self.account
        return hashlib.sha256(f"{account.project} {account.secret or ''}".encode()).hexdigest()[:16]


_decoder = msgspec.json.Decoder(MachineProject)


class MachineProjects:
    """The ConfigMap, and what of it this operator knows to be written."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._key = Key(namespace, NAME)
        self._written: set[str] = set()
        self._writing = asyncio.Lock()

    async def add(self, project: MachineProject) -> None:
        """Before the first machine is made there. Raises a `ClusterError`."""
        async with self._writing:
            if project.entry not in self._written:
                await self._write({project.entry: msgspec.json.encode(project).decode()})
                self._written.add(project.entry)

    async def remove(self, project: MachineProject) -> None:
        async with self._writing:
            self._written.discard(project.entry)
            await self._write({project.entry: None})

    async def all(self) -> tuple[MachineProject, ...]:
        try:
            found = await self._cluster.get(CONFIG_MAPS, self._key)
        except NotFound:
            return ()
        return tuple(_decoded(found))

    async def _write(self, data: dict[str, str | None]) -> None:
        try:
            await self._cluster.patch(CONFIG_MAPS, self._key, {"data": data})
        except NotFound:
            body = {"metadata": {"name": NAME, "labels": LABELS}, "data": {k: v for k, v in data.items() if v}}
            try:
                await self._cluster.create(CONFIG_MAPS, body, namespace=self._key.namespace)
            except AlreadyExists:
                await self._cluster.patch(CONFIG_MAPS, self._key, {"data": data})


def _decoded(config_map: ConfigMap) -> Iterable[MachineProject]:
    for text in config_map.data.values():
        try:
            yield _decoder.decode(text)
        except msgspec.MsgspecError:
            log.warning("an entry can't be read, and its project is not swept", config_map=str(config_map.metadata.key))
