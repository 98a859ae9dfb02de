"""What `holdfast operator` runs for the machines of SpotInstanceJobs, on Compute Engine."""

import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random, SystemRandom

from msgspec import Struct

from holdfast.cluster.protocol import Cluster
from holdfast.machines.clouds import Clouds, CloudSource
from holdfast.machines.machines import Machines, Observe, machines
from holdfast.machines.snapshot import TIMING, MachineTiming
from holdfast.machines.ssh_joiner import JoinTiming, SshJoiner
from holdfast.machines.ssh_keys import RootKey
from holdfast.providers.gcp.credentials import parse_service_account
from holdfast.providers.gcp.endpoint import ENVIRONMENT, GoogleEndpoint, endpoint_at
from holdfast.providers.gcp.provider import connect
from holdfast.providers.protocol import Provider
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import boottime_s, utc_now
from holdfast.runtime.secrets import SecretReader
from holdfast.scheduling.machine_pools import MachinePools


class MachineOptions(Struct, frozen=True, kw_only=True):
    own_identity_namespaces: tuple[str, ...] = ()
    launch_s: float = TIMING.launch_s
    join_step_s: float = TIMING.join_step_s
    gpu_ready_s: float = TIMING.gpu_ready_s

    @property
    def timing(self) -> MachineTiming:
        return MachineTiming(launch_s=self.launch_s, join_step_s=self.join_step_s, gpu_ready_s=self.gpu_ready_s)


@asynccontextmanager
async def operating_machines(
    operator: Operator,
    cluster: Cluster,
    pools: MachinePools,
    reader: SecretReader,
    options: MachineOptions,
    *,
    namespace: str,
    require_leadership: Callable[[], None],
) -> AsyncIterator[Machines]:
    """The controllers of machines, added to the operator; connections to the cloud are closed at the end."""
    endpoint, random, sources = endpoint_at(os.environ.get(ENVIRONMENT, "")), SystemRandom(), list[CloudSource]()

    def clouds(observe: Observe) -> CloudSource:
        source = Clouds(
            reader,
            _Connect(endpoint, random, require_leadership, observe),
            clock=boottime_s,
            own_identity_namespaces=options.own_identity_namespaces,
        )
        sources.append(source)
        return source

    joiner = SshJoiner(
        cluster,
        secrets=reader,
        root_key=RootKey(cluster, namespace, secrets.token_bytes),
        now=utc_now,
        timing=JoinTiming(step_s=options.join_step_s),
    )
    made = machines(
        operator,
        cluster,
        clouds,
        joiner,
        pools,
        namespace=namespace,
        now=utc_now,
        random=random,
        timing=options.timing,
    )
    made.add_to(operator)
    try:
        yield made
    finally:
        for source in sources:
            await source.close()


class _Connect:
    """Projects of Compute Engine, or of the stand-in that the environment names."""

    def __init__(
        self, endpoint: GoogleEndpoint, random: Random, require_leadership: Callable[[], None], observe: Observe
    ) -> None:
        self._endpoint = endpoint
        self._random = random
        self._require_leadership = require_leadership
        self._observe = observe

    def __call__(self, project: str, credential: bytes | None, /) -> Provider:
        token_uri = self._endpoint.token_uri
        return connect(
            project,
            parse_service_account(credential, token_uri=token_uri) if credential is not None else None,
            now=utc_now,
            random=self._random,
            require_leadership=self._require_leadership,
            endpoint=self._endpoint,
            observe=self._observe,
        )
