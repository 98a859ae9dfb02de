"""Claims on storage. One machine has a folder for each of them, so that a claim gets its storage at once.

A claim that is deleted stays while a pod on a machine uses it, as on any cluster; then its storage goes, then the
claim: one of the same name never finds what its predecessor left.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TypeAlias

import msgspec

from holdfast.api.meta import Key
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import Cluster
from holdfast.plane.objects import CLAIMS, PODS, Claim, ClaimStatus, Pod, resource_version_precondition
from holdfast.runtime.cache import Store
from holdfast.runtime.controller import Controller, Watch
from holdfast.runtime.events import Recorder
from holdfast.runtime.operator import Operator
from holdfast.runtime.result import Done, Result, TerminalError
from holdfast.runtime.writes import TrackedClient, WriteTracker

PROTECTION = "kubernetes.io/pvc-protection"

Reclaim: TypeAlias = Callable[[Key], Awaitable[None]]


async def nothing_to_reclaim(_claim: Key) -> None:
    """Where claims have no storage behind them."""


def volume_of(claim: Claim) -> str:
    return f"pvc-{claim.metadata.uid}"


def unsupported_reason(claim: Claim) -> str:
    """What keeps a claim from having a folder; empty when nothing does."""
    spec = claim.spec
    if spec.volume_name not in ("", volume_of(claim)):
        return f'there is no PersistentVolume "{spec.volume_name}" here; leave volumeName out to be given a folder'
    if spec.selector is not None:
        return "there are no PersistentVolumes here to select from; leave selector out to be given a folder"
    if spec.volume_mode != "Filesystem":
        return f"the volumeMode {spec.volume_mode} can't be had here, where a claim is a folder; use Filesystem"
    return ""


UNBOUND = "pod has unbound immediate PersistentVolumeClaims"


def unbound_claims_message(pod: Pod, claims: Store[Claim]) -> str:
    """What the scheduler says of a pod whose claims are not ready; empty when they are."""
    for key in pod.claims:
        claim = claims.get(key)
        if claim is None:
            return f'persistentvolumeclaim "{key.name}" not found'
        if claim.metadata.deletion_timestamp:
            return f'persistentvolumeclaim "{key.name}" is being deleted'
        if claim.status.phase != "Bound":
            return UNBOUND
    return ""


class ClaimReconciler:
    def __init__(
        self, cluster: Cluster, claims: Store[Claim], writer: WriteTracker, events: Recorder, reclaim: Reclaim
    ) -> None:
        self._cluster = cluster
        self._claims = claims
        self._writer = writer
        self._events = events
        self._reclaim = reclaim

    async def reconcile(self, key: Key) -> Result:
        claim, session = self._claims.get(key), self._writer.for_key(key)
        if claim is None:
            return Done()
        if claim.metadata.deletion_timestamp:
            await self._finalize(claim, session)
        elif trouble := unsupported_reason(claim):
            self._events.warning(CLAIMS, claim, "ProvisioningFailed", trouble)
        else:
            await self._bind(claim, session)
        return Done()

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        """Nothing here is final."""

    async def _bind(self, claim: Claim, session: TrackedClient) -> None:
        key, spec, finalizers = claim.metadata.key, claim.spec, claim.metadata.finalizers
        given = ClaimStatus(phase="Bound", access_modes=spec.access_modes, capacity=_capacity(claim))
        protected = finalizers if PROTECTION in finalizers else (*finalizers, PROTECTION)
        with suppress(NotFound):
            if not spec.volume_name or protected != finalizers:
                metadata = {**resource_version_precondition(claim), "finalizers": protected}
                patch = {"metadata": metadata, "spec": {"volumeName": volume_of(claim)}}
                claim = await session.patch(CLAIMS, key, patch)
            if claim.status != given:
                patch = {"metadata": resource_version_precondition(claim), "status": msgspec.to_builtins(given)}
                await session.patch_status(CLAIMS, key, patch)

    async def _finalize(self, claim: Claim, session: TrackedClient) -> None:
        key = claim.metadata.key
        if PROTECTION not in claim.metadata.finalizers or await self._is_used(key):
            return
        await self._reclaim(key)
        left = [each for each in claim.metadata.finalizers if each != PROTECTION]
        with suppress(NotFound):
            await session.patch(CLAIMS, key, {"metadata": {**resource_version_precondition(claim), "finalizers": left}})

    async def _is_used(self, key: Key) -> bool:
        """Asked of the cluster: a cache that shows the claim's deletion may not show yet who was bound before it."""
        pods = (await self._cluster.list(PODS, namespace=key.namespace)).items
        return any(key in pod.claims for pod in pods if pod.spec.node_name)


def _capacity(claim: Claim) -> dict[str, str | int | float]:
    return {name: amount for name, amount in claim.spec.resources.requests.items() if name == "storage"}


def _claims_of(pod: Pod) -> Iterable[Key]:
    return pod.claims


def claims(operator: Operator, cluster: Cluster, *, reclaim: Reclaim) -> Controller[Claim]:
    writer = operator.writer()
    reconciler = ClaimReconciler(cluster, operator.store(CLAIMS), writer, operator.recorder, reclaim)
    return Controller(
        name="claims", resource=CLAIMS, reconciler=reconciler, writer=writer, watches=(Watch(PODS, _claims_of),)
    )
