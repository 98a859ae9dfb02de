"""One machine that is to join, and all that anybody could read of it."""

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import structlog
from msgspec import structs

from holdfast.api.meta import Key
from holdfast.api.spotinstancevm import SSH, KubeadmJoinConfig
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import NAMESPACES, NODES, SECRETS
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.machines.bootstrap_tokens import token_id, token_of
from holdfast.machines.join_credentials import ca_cert_hash
from holdfast.machines.joining import HostKeySource, JoinProgress, JoinRequest, JoinStep, JoinTarget
from holdfast.machines.ssh_joiner import TIMING, JoinTiming, SshJoiner
from holdfast.machines.ssh_keys import RootKey, machine_key, token_bytes
from holdfast.runtime.secrets import SecretReader
from tests.machines.cluster_info import ENDPOINT, authority, publish
from tests.machines.kubeadm_double import Wanted
from tests.machines.light_machine import PORT, Fault, LightMachine, LightMachines, light_machines

BEGINNING = datetime(2026, 3, 1, tzinfo=UTC)
ROOT_KEY = bytes(range(32))
OPERATOR_NAMESPACE = "holdfast-system"
TARGET = JoinTarget(
    uid="0c5f5f9a-8f0b-4c57-9d3e-6f1d2a3b4c5d",
    namespace="ml",
    node_name="holdfast-0c5f5f9a-8f0b-4c57-9d3e-6f1d2a3b4c5d",
    project="acme-ml",
    zone="europe-west4-a",
)


def now() -> datetime:
    return BEGINNING + timedelta(seconds=asyncio.get_running_loop().time())


class JoinBench:
    """`target` is changed before `boot`, where a test wants it to be different."""

    def __init__(self, cluster: EmbeddedCluster, machines: LightMachines, ca_hash: str, timing: JoinTiming) -> None:
        self.cluster: Cluster = cluster
        self.embedded = cluster
        self.machines = machines
        self.ca_hash = ca_hash
        self.target = TARGET
        self.progress: list[JoinProgress] = []
        self.records: list[str] = []
        self.tokens: tuple[str, ...] = ()
        self.secrets: list[str] = []  # what users have written into theirs
        self.told_keys: tuple[str, ...] | None = None  # instead of the machine's own
        self.joiner = self.new_joiner(timing=timing)

    def new_joiner(self, cluster: Cluster | None = None, *, timing: JoinTiming = TIMING) -> SshJoiner:
        """As of an operator that starts."""
        used = cluster or self.cluster
        return SshJoiner(
            used,
            secrets=SecretReader(used, operator_account="holdfast-system:holdfast-operator"),
            root_key=RootKey(used, OPERATOR_NAMESPACE, lambda count: ROOT_KEY[:count]),
            now=now,
            timing=timing,
            port=PORT,
        )

    async def boot(self, *faults: Fault, **metadata: str) -> LightMachine:
        made_with = dict(await self.joiner.metadata(self.target)) | metadata
        wanted = Wanted(
            node_name=self.target.node_name,
            provider_id=f"gce://acme-ml/europe-west4-a/{self.target.node_name}",
            uid=self.target.uid,
            endpoint=ENDPOINT,
            ca_cert_hashes=(self.ca_hash,),
            tokens=self.tokens,
        )
        self.machine = await self.machines.boot(wanted, metadata=made_with, gpus=1, faults=frozenset(faults))
        return self.machine

    async def host_keys(self, zone: str, name: str) -> tuple[str, ...]:
        assert (zone, name) == (self.target.zone, self.target.node_name)
        return self.machine.host_keys if self.told_keys is None else self.told_keys

    async def join(
        self,
        joiner: SshJoiner | None = None,
        *,
        resumed: JoinProgress | None = None,
        addresses: tuple[str, ...] = (),
        cloud: HostKeySource | None = None,
    ) -> None:
        addresses = addresses or ("", self.machine.address)
        request = JoinRequest(target=self.target, addresses=addresses, resumed=resumed)
        try:
            await (joiner or self.joiner).join(request, cloud or self, self.progress.append)
        except Exception as error:
            self.records += [str(error), repr(error), repr(error.__context__), repr(error.__cause__)]
            raise
        finally:
            self.records.append(repr(request))

    @property
    def steps(self) -> list[JoinStep]:
        return list(dict.fromkeys(progress.step for progress in self.progress))

    async def secret(self, namespace: str, name: str, **data: str) -> None:
        self.secrets += data.values()
        encoded = {key.replace("_", "-"): base64.b64encode(value.encode()).decode() for key, value in data.items()}
        await self.cluster.create(SECRETS, {"metadata": {"name": name}, "data": encoded}, namespace=namespace)

    async def node(self) -> Any:
        return await self.cluster.get(NODES, Key("", self.target.node_name))

    async def has_token(self) -> bool:
        try:
            await self.cluster.get(SECRETS, Key("kube-system", f"bootstrap-token-{token_id(self.target.uid)}"))
        except NotFound:
            return False
        return True

    def change_target(self, *, ssh: SSH | None = None, kubeadm: KubeadmJoinConfig | None = None) -> None:
        self.target = structs.replace(self.target, ssh=ssh, kubeadm=kubeadm)


def assert_no_secrets(bench: JoinBench) -> None:
    """In no log, error, progress, command line or metadata."""
    token = token_of(bench.target.uid, token_bytes(ROOT_KEY, bench.target.uid))
    key = machine_key(ROOT_KEY, bench.target.uid).export_private_key().decode()
    hidden = {token.secret, ROOT_KEY.hex(), base64.b64encode(ROOT_KEY).decode(), *bench.secrets}
    hidden |= {line for line in key.splitlines() if not line.startswith("-") and len(line) > 40}
    said = [*bench.records, *(repr(each) for each in bench.progress)]
    for machine in bench.machines.booted:
        said += [*machine.commands, repr(machine.metadata)]
    found = [text for text in said if any(secret in text for secret in hidden)]
    assert not found


class _Records(logging.Handler):
    def __init__(self, records: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(self.format(record))


@contextmanager
def _everything_logged(records: list[str]) -> Iterator[None]:
    """Also what libraries would only log at their lowest level."""
    handler, root, library = _Records(records), logging.getLogger(), logging.getLogger("asyncssh")
    before = [(logger, logger.level) for logger in (root, library)]
    root.addHandler(handler)
    for logger, _ in before:
        logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for logger, level in before:
            logger.setLevel(level)


@asynccontextmanager
async def join_bench(timing: JoinTiming = TIMING, *, quiet: bool = False) -> AsyncIterator[JoinBench]:
    """Afterwards nothing that a person could read has a secret. quiet: loggers stay as they are."""
    cluster: EmbeddedCluster = await open_cluster(None, now=now, rng=Random(0))
    certificate = authority()
    await publish(cluster, certificate)
    for name in ("ml", OPERATOR_NAMESPACE):
        await cluster.create(NAMESPACES, {"metadata": {"name": name}})
    try:
        async with light_machines(cluster, now=now) as machines:
            bench = JoinBench(cluster, machines, ca_cert_hash(certificate), timing)
            loud = nullcontext() if quiet else _everything_logged(bench.records)
            with structlog.testing.capture_logs() as logs, loud:
                yield bench
            bench.records += map(repr, logs)
            assert_no_secrets(bench)
    finally:
        await cluster.close()
