"""Has a machine join by SSH and kubeadm, step by step, each with a deadline.

All that is found out on the way is found out again by a later call: the machine's host key from the cloud, how far it
is on the machine itself, and the token by its name.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TypeVar

import asyncssh
import structlog
from msgspec import Struct, structs

from holdfast.api.meta import Key
from holdfast.cluster.errors import ClusterError, NotFound, NotLeading
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import NODES
from holdfast.errors import HoldfastError
from holdfast.machines import bootstrap_tokens, kubeadm, ssh
from holdfast.machines.bootstrap_tokens import token_id, token_of
from holdfast.machines.join_credentials import JoinCredentials, JoinCredentialSource
from holdfast.machines.joining import (
    INSTANCE_LABEL,
    HostKeySource,
    JoinFailed,
    JoinProgress,
    JoinRequest,
    JoinStep,
    JoinTarget,
    Report,
)
from holdfast.machines.kubeadm import MachineState
from holdfast.machines.metadata import DEFAULT_USER, machine_metadata
from holdfast.machines.ssh import ConnectionBroke, LoginFailed, Output
from holdfast.machines.ssh_keys import RootKey, machine_key, public_line, token_bytes, user_key
from holdfast.providers.errors import RateLimited
from holdfast.runtime.process import Now
from holdfast.runtime.secrets import SecretReader
from holdfast.times import format_time

T = TypeVar("T")

STEPS = tuple(JoinStep)
# Of the time of the step: kubeadm waits at three places, and is to say itself which of them it was.
KUBEADM_PATIENCE = 0.3

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class JoinTiming(Struct, frozen=True, kw_only=True):
    step_s: float = 300.0
    resumed_s: float = 30.0
    """An operator that was away gets at least so long to see how far the machine has come meanwhile."""
    connect_s: float = 10.0
    first_pause_s: float = 2.0
    longest_pause_s: float = 15.0


TIMING = JoinTiming()


class SshJoiner:
    """A `Joiner`. `port` is that of machines whose template has no `ssh`."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        secrets: SecretReader,
        root_key: RootKey,
        now: Now,
        timing: JoinTiming = TIMING,
        port: int = 22,
    ) -> None:
        self.cluster = cluster
        self.credentials = JoinCredentialSource(cluster, secrets)
        self.timing = timing
        self.now = now
        self._secrets = secrets
        self._root_key = root_key
        self._port = port

    async def metadata(self, target: JoinTarget) -> Mapping[str, str]:
        # What would only be found missing at the join is asked for before a machine costs anything.
        await self.credentials.complete(await self.credentials.given(target))
        user, key = await self._user(target)
        return machine_metadata(user, public_line(key), target.startup_script)

    async def join(self, request: JoinRequest, provider: HostKeySource, report: Report) -> None:
        try:
            await _Join(self, request, provider, report).run()
        except JoinFailed:
            await self._revoke_or_log(request.target)
            raise
        await self._revoke_or_log(request.target)

    async def revoke(self, uid: str) -> None:
        await bootstrap_tokens.revoke(self.cluster, token_id(uid))

    async def login(self, request: JoinRequest) -> ssh.Login:
        user, key = await self._user(request.target)
        port = request.target.ssh.port if request.target.ssh else self._port
        return ssh.Login(user=user, key=key, addresses=tuple(filter(None, request.addresses)), port=port)

    async def mint(self, target: JoinTarget) -> str:
        token = token_of(target.uid, token_bytes(await self._root_key.get(), target.uid))
        await bootstrap_tokens.mint(self.cluster, token, machine=target.node_name, now=self.now())
        return token.text

    async def _user(self, target: JoinTarget) -> tuple[str, asyncssh.SSHKey]:
        if target.ssh is None:
            return DEFAULT_USER, machine_key(await self._root_key.get(), target.uid)
        secret = await self._secrets.read(target.ssh.key_secret_ref, target.namespace, field="ssh.keySecretRef")
        return target.ssh.user, user_key(secret)

    async def _revoke_or_log(self, target: JoinTarget) -> None:
        if target.kubeadm is not None:
            return
        try:
            await self.revoke(target.uid)
        except ClusterError as error:
            # It is revoked again with the machine, and ends by itself.
            log.warning("a bootstrap token is not revoked yet", machine=target.node_name, reason=str(error))


class _NotYet(HoldfastError):
    """To be looked at again after a pause."""


class _Join:
    """One machine's way through the steps."""

    def __init__(self, joiner: SshJoiner, request: JoinRequest, provider: HostKeySource, report: Report) -> None:
        self._joiner = joiner
        self._request = request
        self._target = request.target
        self._provider = provider
        self._report = report
        self._host_keys: list[asyncssh.SSHKey] = []
        self._connection: asyncssh.SSHClientConnection | None = None
        self._output = Output()

    async def run(self) -> None:
        try:
            async with self._step(JoinStep.HOST_KEY, "waiting for the SSH host key that the machine tells at its boot"):
                await self._repeat(self._learn_host_keys)
            async with self._step(JoinStep.LOGIN, "logging in"):
                self._login = await self._repeat(self._find_login)
                await self._repeat(self._connected)
            async with self._step(JoinStep.PREFLIGHT, "looking for kubeadm on the machine"):
                state = await self._repeat(self._machine_state)
            if state != MachineState.JOINED:
                async with self._step(JoinStep.KUBEADM, "running kubeadm join"):
                    await self._repeat(self._join_once)
        finally:
            await self._hang_up()
        async with self._step(JoinStep.NODE_REGISTERED, f"waiting for Node {self._target.node_name}"):
            await self._repeat(self._find_node)

    @asynccontextmanager
    async def _step(self, step: JoinStep, doing: str) -> AsyncIterator[None]:
        now = self._joiner.now()
        deadline = self._deadline(step, now)
        self._doing = doing
        self._progress = JoinProgress(step=step, deadline=deadline, message=doing)
        self._report(self._progress)
        try:
            async with asyncio.timeout((deadline - now).total_seconds()) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            said = kubeadm.last_lines(self._output.text) if step == JoinStep.KUBEADM else ""
            message = self._progress.message + (f", which has said so far: {said}" if said else "")
            raise JoinFailed(step, f"{message}; its time was over at {format_time(deadline)}") from None

    def _deadline(self, step: JoinStep, now: datetime) -> datetime:
        resumed, timing = self._request.resumed, self._joiner.timing
        if resumed is None or STEPS.index(step) > STEPS.index(resumed.step):
            return now + timedelta(seconds=timing.step_s)
        return max(resumed.deadline, now + timedelta(seconds=timing.resumed_s))

    async def _repeat(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Until it succeeds or the step's time is over: at a boot nearly everything fails for a while."""
        pause_s = self._joiner.timing.first_pause_s
        while True:
            try:
                return await attempt()
            except (JoinFailed, NotLeading):
                raise
            except HoldfastError as error:
                self._say(f"{self._doing}: {error}")
                asked_s = error.retry_after_s if isinstance(error, RateLimited | ClusterError) else None
            await asyncio.sleep(max(pause_s, asked_s or 0))
            pause_s = min(2 * pause_s, self._joiner.timing.longest_pause_s)

    def _say(self, message: str) -> None:
        said = structs.replace(self._progress, message=message)
        if said != self._progress:
            self._progress = said
            self._report(said)

    async def _learn_host_keys(self) -> None:
        told = await self._provider.host_keys(self._target.zone, self._target.node_name)
        if not (keys := ssh.parse_host_keys(told)):
            raise _NotYet("none yet; the image needs the guest agent, and the project has to allow guest attributes")
        self._host_keys = keys

    async def _find_login(self) -> ssh.Login:
        return await self._joiner.login(self._request)

    async def _connected(self) -> asyncssh.SSHClientConnection:
        if self._connection is None or self._connection.is_closed():
            try:
                self._connection = await ssh.log_in(
                    self._login, self._host_keys, connect_s=self._joiner.timing.connect_s
                )
            except LoginFailed as error:
                if error.is_other_host:  # an image's own keys, which the guest agent replaces at the first boot
                    await self._learn_host_keys()
                raise
        return self._connection

    async def _machine_state(self) -> MachineState:
        output = Output()
        await self._run(kubeadm.preflight_command(self._login.user), output)
        state = kubeadm.machine_state(output.text)
        if state is None:
            raise _NotYet(f"the machine said: {kubeadm.last_lines(output.text) or 'nothing'}")
        if state == MachineState.NO_KUBEADM:
            raise _NotYet("it is not installed there; the image or its startup script has to bring it")
        return state

    async def _join_once(self) -> None:
        state = await self._machine_state()
        if state == MachineState.JOINED:
            return
        if state == MachineState.JOINING:
            raise _NotYet("it runs since before this login")
        configuration = kubeadm.join_configuration(
            self._target, await self._credentials(), patience_s=self._joiner.timing.step_s * KUBEADM_PATIENCE
        )
        self._output = Output()
        status = await self._run(kubeadm.join_command(self._login.user), self._output, text=configuration)
        status = kubeadm.exit_status(self._output.text, otherwise=status)
        if status != 0:
            said = kubeadm.last_lines(self._output.text) or "nothing"
            raise JoinFailed(JoinStep.KUBEADM, f"kubeadm join ended with exit status {status}, and has said: {said}")

    async def _credentials(self) -> JoinCredentials:
        source = self._joiner.credentials
        given = await source.given(self._target)
        return await source.complete(given, given.token or await self._joiner.mint(self._target))

    async def _run(self, command: str, output: Output, *, text: str = "") -> int:
        try:
            return await ssh.run(await self._connected(), command, output, text=text)
        except ConnectionBroke:
            await self._hang_up()
            raise

    async def _hang_up(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await ssh.hang_up(connection)

    async def _find_node(self) -> None:
        nodes, uid, name = self._joiner.cluster, self._target.uid, self._target.node_name
        try:
            await nodes.get(NODES, Key("", name))
        except NotFound:
            others = (await nodes.list(NODES, labels=f"{INSTANCE_LABEL}={uid}")).items
        else:
            return
        if others:
            raise JoinFailed(
                JoinStep.NODE_REGISTERED,
                f"the machine has become Node {others[0].metadata.name} instead of {name}: something there gives its "
                "kubelet another name, such as KUBELET_EXTRA_ARGS in /etc/default/kubelet",
            )
        raise _NotYet("there is none yet")
