"""PersistentVolumeClaims, and the TTL of finished Jobs. A claim is a folder on one host, so it is bound at once.

A deleted claim stays while a pod on a node uses it, as on any cluster. Then its storage is removed, then the claim, so
that a new claim of the same name never finds old data.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import TypeAlias

import msgspec

from holdfast.api.core.objects import PersistentVolumeClaim, PersistentVolumeClaimStatus, Pod
from holdfast.api.meta import Key
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import Cluster, DeleteOptions, Propagation
from holdfast.cluster.resources import CLAIMS, PODS
from holdfast.local.controllers.objects import JOBS, TemplatedJob, resource_version_precondition
from holdfast.runtime.controller import Controller, Done, RequeueAfter, Result, TerminalError, Watch
from holdfast.runtime.events import Recorder
from holdfast.runtime.informer import Store
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now
from holdfast.runtime.read_your_writes import TrackedClient, WriteTracker
from holdfast.times import parse_time

PROTECTION = "kubernetes.io/pvc-protection"

Reclaim: TypeAlias = Callable[[Key], Awaitable[None]]


async def nothing_to_reclaim(_claim: Key) -> None:
    """For clusters whose claims have no storage."""


def volume_of(claim: PersistentVolumeClaim) -> str:
    return f"pvc-{claim.metadata.uid}"


def unsupported_reason(claim: PersistentVolumeClaim) -> str:
    """Why a claim can't be bound to a folder; empty when it can."""
    spec = claim.spec
    if spec.volume_name not in ("", volume_of(claim)):
        return f'there is no PersistentVolume "{spec.volume_name}" here; leave volumeName out to be given a folder'
    if spec.selector is not None:
        return "there are no PersistentVolumes here to select from; leave selector out to be given a folder"
    if spec.volume_mode != "Filesystem":
        return f"the volumeMode {spec.volume_mode} can't be had here, where a claim is a folder; use Filesystem"
    return ""


UNBOUND = "pod has unbound immediate PersistentVolumeClaims"


def unbound_claims_message(pod: Pod, claims: Store[PersistentVolumeClaim]) -> str:
    """The scheduler's message for a pod whose claims are not bound; empty when they are."""
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
        self,
        cluster: Cluster,
        claims: Store[PersistentVolumeClaim],
        writer: WriteTracker,
        events: Recorder,
        reclaim: Reclaim,
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
        elif problem := unsupported_reason(claim):
            self._events.warning(CLAIMS, claim, "ProvisioningFailed", problem)
        else:
            await self._bind(claim, session)
        return Done()

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        """No error is terminal here."""

    async def _bind(self, claim: PersistentVolumeClaim, session: TrackedClient) -> None:
        key, spec, finalizers = claim.metadata.key, claim.spec, claim.metadata.finalizers
        bound = PersistentVolumeClaimStatus(phase="Bound", access_modes=spec.access_modes, capacity=_capacity(claim))
        protected = finalizers if PROTECTION in finalizers else (*finalizers, PROTECTION)
        with suppress(NotFound):
            if not spec.volume_name or protected != finalizers:
                metadata = {**resource_version_precondition(claim), "finalizers": protected}
                patch = {"metadata": metadata, "spec": {"volumeName": volume_of(claim)}}
                claim = await session.patch(CLAIMS, key, patch)
            if claim.status != bound:
                patch = {"metadata": resource_version_precondition(claim), "status": msgspec.to_builtins(bound)}
                await session.patch_status(CLAIMS, key, patch)

    async def _finalize(self, claim: PersistentVolumeClaim, session: TrackedClient) -> None:
        key = claim.metadata.key
        if PROTECTION not in claim.metadata.finalizers or await self._is_used(key):
            return
        await self._reclaim(key)
        remaining = [each for each in claim.metadata.finalizers if each != PROTECTION]
        with suppress(NotFound):
            await session.patch(
                CLAIMS, key, {"metadata": {**resource_version_precondition(claim), "finalizers": remaining}}
            )

    async def _is_used(self, key: Key) -> bool:
        """Reads from the cluster: a cache that shows the claim's deletion may lack pods that were bound before it."""
        pods = (await self._cluster.list(PODS, namespace=key.namespace)).items
        return any(key in pod.claims for pod in pods if pod.spec.node_name)


def _capacity(claim: PersistentVolumeClaim) -> dict[str, str | int | float]:
    return {name: amount for name, amount in claim.spec.resources.requests.items() if name == "storage"}


def _claims_of(pod: Pod) -> Iterable[Key]:
    return pod.claims


def claims(operator: Operator, cluster: Cluster, *, reclaim: Reclaim) -> Controller[PersistentVolumeClaim]:
    writer = operator.writer()
    reconciler = ClaimReconciler(cluster, operator.store(CLAIMS), writer, operator.recorder, reclaim)
    return Controller(
        name="claims", resource=CLAIMS, reconciler=reconciler, writer=writer, watches=(Watch(PODS, _claims_of),)
    )


# Deletes finished Jobs after their ttlSecondsAfterFinished.


class JobTtlReconciler:
    def __init__(self, jobs: Store[TemplatedJob], writer: WriteTracker, now: Now) -> None:
        self._jobs = jobs
        self._writer = writer
        self._now = now

    async def reconcile(self, key: Key) -> Result:
        job = self._jobs.get(key)
        ttl_s = job.spec.ttl_seconds_after_finished if job else None
        if job is None or ttl_s is None or not job.finished_at or job.metadata.deletion_timestamp:
            return Done()
        left_s = (parse_time(job.finished_at) + timedelta(seconds=ttl_s) - self._now()).total_seconds()
        if left_s > 0:
            return RequeueAfter(left_s)
        # Delete only the version that was read: a TTL that was extended meanwhile is respected.
        meta = job.metadata
        session = self._writer.for_key(key)
        await session.delete(
            JOBS,
            key,
            DeleteOptions(uid=meta.uid, resource_version=meta.resource_version, propagation=Propagation.FOREGROUND),
        )
        return Done()

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        """No error is terminal here."""


def finished_jobs(operator: Operator, *, now: Now) -> Controller[TemplatedJob]:
    writer = operator.writer()
    reconciler = JobTtlReconciler(operator.store(JOBS), writer, now)
    return Controller(name="job-ttl", resource=JOBS, reconciler=reconciler, writer=writer)
