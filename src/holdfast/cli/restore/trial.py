"""Saves and restores a small pod on one node, really, and then gives the node its label."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from msgspec import Struct

from holdfast.api.checkpointbackup import TERMINAL_PHASES, CheckpointBackup
from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.checkpoints.images.errors import ImageError
from holdfast.checkpoints.images.reference import parse_reference, registry_address
from holdfast.checkpoints.images.registry import RegistryClient
from holdfast.cli.restore.images import REGISTRY_WITHIN_S, FoundRun, RestoreFailed, find_run, registry_credential
from holdfast.cli.restore.pods import RESTORE_NODES, PodRestorer, why_not
from holdfast.cli.session import Session
from holdfast.cluster.errors import ClusterError, NotFound
from holdfast.cluster.protocol import Cluster, DeleteOptions
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, PODS
from holdfast.pods.restore.nodes import HOSTNAME_LABEL, RESTORE_LABEL, RESTORE_VALUE, RestoreNode, why_unable
from holdfast.pods.restore.template import RestorePlan

POLL_S = 0.5
CONTAINER = "counter"
# An identity that only its memory has, and a count. Any image with a shell will do.
SCRIPT = "read id < /proc/sys/kernel/random/uuid; n=0; while true; do n=$((n+1)); echo $id $n; sleep 1; done"


class TrialOptions(Struct, frozen=True, kw_only=True):
    """registry: host and repository. secret: with its credential, in the session's namespace."""

    node: str
    registry: str
    image: str
    secret: str = ""
    plain_http: tuple[str, ...] = ()
    within_s: float = 300.0


async def run_node_trial(session: Session, options: TrialOptions, say: Callable[[str], None]) -> None:
    """Raises RestoreFailed with what is missing; the label stays as it was then."""
    node = await session.cluster.get(RESTORE_NODES, Key("", options.node))
    if why := why_unable(node):
        raise RestoreFailed(f"node {options.node} can't restore: {why}")
    trial = NodeTrial(session, node, options, say)
    try:
        async with asyncio.timeout(options.within_s):
            await trial.run()
    except TimeoutError:
        raise RestoreFailed(
            f"the trial on {options.node} was not over after {options.within_s:.0f} s: {trial.waits_for}"
        ) from None
    labels = {"metadata": {"labels": {RESTORE_LABEL: RESTORE_VALUE}}}
    await session.cluster.patch(RESTORE_NODES, Key("", options.node), labels)


class NodeTrial:
    """All that it creates has one name, and goes when it is over."""

    def __init__(self, session: Session, node: RestoreNode, options: TrialOptions, say: Callable[[str], None]) -> None:
        self._session = session
        self._cluster: Cluster = session.cluster
        self._node = node
        self._options = options
        self._say = say
        self._key = Key(session.namespace, f"holdfast-trial-{secrets.token_hex(3)}")
        self.waits_for = ""

    async def run(self) -> None:
        async with self._cleaned_up():
            self._wait_for(f"a small pod on {self._node.name}")
            old = await self._cluster.create(PODS, self._pod(), namespace=self._key.namespace)
            said = await self._log_line(old.metadata.key, "")
            self._wait_for("its checkpoint")
            backup = await self._saved()
            found = await find_run(self._session, backup, [CONTAINER], None, self._options.plain_http)
            self._wait_for("a pod that goes on from it")
            pod = await self._restored(found)
            identity, _, step = said.partition(" ")
            after = await self._log_line(pod.metadata.key, identity, int(step) + 1)
            self._say(f"a pod was saved and went on on {self._node.name}: at step {after.partition(' ')[2]}")
            await self._forget_images(backup, found)

    def _wait_for(self, what: str) -> None:
        self.waits_for = f"it waited for {what}"
        self._say(f"trying {what}")

    def _pod(self) -> dict[str, Any]:
        security = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        container = {
            "name": CONTAINER,
            "image": self._options.image,
            "command": ["sh", "-c", SCRIPT],
            "securityContext": security,
        }
        spec = {
            "containers": [container],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "nodeSelector": {HOSTNAME_LABEL: self._node.hostname},
            "tolerations": [{"operator": "Exists"}],
        }
        return {"metadata": {"name": self._key.name, "namespace": self._key.namespace}, "spec": spec}

    async def _saved(self) -> CheckpointBackup:
        host, _, repository = self._options.registry.partition("/")
        registry: dict[str, Any] = {"url": host, "repository": repository or "holdfast-trial"}
        if self._options.secret:
            registry["secretRef"] = {"name": self._options.secret}
        spec = {
            "schedule": "immediately",
            "mode": "container",
            "podRef": {"name": self._key.name},
            "registry": registry,
            "timeoutSeconds": max(10, int(self._options.within_s)),
        }
        body = {"metadata": {"name": self._key.name}, "spec": spec}
        await self._cluster.create(CHECKPOINT_BACKUPS, body, namespace=self._key.namespace)
        while True:
            backup = await self._cluster.get(CHECKPOINT_BACKUPS, self._key)
            if backup.status is not None and backup.status.phase in TERMINAL_PHASES:
                break
            if backup.status is not None and backup.status.message:
                self.waits_for = f"it waited for its checkpoint: {backup.status.message}"
            await asyncio.sleep(POLL_S)
        if backup.status.phase != "Completed":
            raise RestoreFailed(f"node {self._node.name} does not save: {backup.status.message}")
        return backup

    async def _restored(self, found: FoundRun) -> Pod:
        plan = RestorePlan(
            name=f"{self._key.name}-again",
            namespace=self._key.namespace,
            images=found.images,
            nodes=(self._node,),
            secret=self._options.secret,
            needs_label=False,
        )
        restorer = PodRestorer(self._session, self._pod(), self._say)
        try:
            return await restorer.restore(plan)
        except asyncio.CancelledError:
            self.waits_for = why_not(restorer.last)
            raise

    async def _log_line(self, key: Key, identity: str, at_least: int = 1) -> str:
        """The newest line that it has written, of this identity and at this step or later."""
        while True:
            with suppress(ClusterError):  # its container is not there yet
                for line in reversed((await self._cluster.pod_log(key, tail_lines=5)).decode().splitlines()):
                    who, _, step = line.partition(" ")
                    if identity in ("", who) and step.isdecimal() and int(step) >= at_least:
                        return line
            pod = await self._cluster.get(PODS, key)
            self.waits_for = f"it waited for {why_not(pod)}"
            if pod.is_finished:
                raise RestoreFailed(f"pod {key} is {pod.status.phase}: {why_not(pod)}")
            await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def _cleaned_up(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            with suppress(NotFound):
                await self._cluster.delete(CHECKPOINT_BACKUPS, self._key)
            for name in (self._key.name, f"{self._key.name}-again", f"{self._key.name}-again-base-image"):
                with suppress(NotFound):
                    key, options = Key(self._key.namespace, name), DeleteOptions(grace_period_s=0)
                    await self._cluster.delete(PODS, key, options)

    async def _forget_images(self, backup: CheckpointBackup, found: FoundRun) -> None:
        """Memory of a trial is nobody's secret; a registry that deletes nothing keeps it."""
        plain_http = self._options.plain_http
        address = registry_address(backup.spec.registry.url, plain_http)
        credential = await registry_credential(self._session, backup, address.host)
        clock = asyncio.get_running_loop().time
        with suppress(ImageError):
            async with RegistryClient(
                address, credential, deadline_s=clock() + REGISTRY_WITHIN_S, plain_http=plain_http, clock=clock
            ) as registry:
                for image in found.images:
                    reference = parse_reference(image.image)
                    await registry.delete(reference.repository, reference.digest)
