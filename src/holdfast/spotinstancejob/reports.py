"""What the sidecar of a replica is told when it reports: go on, save now, or that its attempt is over.

Progress of replicas is shown nowhere; their sidecars report so that checkpoints can be asked of them.
"""

from holdfast.api.core.objects import Node, Pod
from holdfast.api.meta import Key
from holdfast.api.reports import ReportReply, WorkerReport, node_leaves_text
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import NODES, PODS, SPOT_INSTANCE_JOBS
from holdfast.pods.failure import has_preemption_notice
from holdfast.runtime.deleted_objects import DeletedObjects
from holdfast.runtime.informer import Store
from holdfast.runtime.operator import Operator
from holdfast.runtime.report_server import NotInCacheYet, ReportingPod
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.application import INDEX_OF_REPLICA
from holdfast.spotinstancejob.snapshot import replica_of, status_of


class ReplicaReports:
    """A `ReportingKind`."""

    noun = "a replica of a SpotInstanceJob"

    def __init__(
        self, *, pods: Store[Pod], nodes: Store[Node], jobs: Store[SpotInstanceJob], deleted_jobs: DeletedObjects
    ) -> None:
        self._pods = pods
        self._nodes = nodes
        self._jobs = jobs
        self._gone = deleted_jobs

    @classmethod
    def of(cls, operator: Operator, cluster: Cluster) -> "ReplicaReports":
        """On the operator's stores."""
        return cls(
            pods=operator.store(PODS),
            nodes=operator.store(NODES),
            jobs=operator.store(SPOT_INSTANCE_JOBS),
            deleted_jobs=DeletedObjects(cluster, SPOT_INSTANCE_JOBS),
        )

    def caller(self, pod: Pod) -> ReportingPod | None:
        found = names.replica_of(pod)
        if found is None:
            return None
        return ReportingPod(pod.metadata.key, pod.metadata.uid, found.job, found.attempt, INDEX_OF_REPLICA)

    async def reply(self, caller: ReportingPod, batch: WorkerReport) -> ReportReply:
        """A caller that learns that its attempt is over stops its training: a cache that lags is no reason for that."""
        job, pod = self._jobs.get(caller.job), self._pods.get(caller.pod)
        if job is None or job.metadata.uid != batch.uid:
            if not await self._gone.is_gone(caller.job, batch.uid):
                raise NotInCacheYet(f"{caller.job} is not known here: try again in a moment")
            return ReportReply(attempt=caller.attempt, attempt_over=True)
        found = names.replica_of(pod) if pod is not None else None
        if found is None or pod is None:
            raise NotInCacheYet(f"pod {caller.pod} is not known here: try again in a moment")
        reply = reply_for_replica(job, found.replica, found.attempt)
        if reply.attempt_over or pod.is_terminating:
            return reply  # the termination of its own pod already requests the save
        node = self._nodes.get(Key("", pod.spec.node_name))
        leaves = node is not None and has_preemption_notice(node)
        return ReportReply(
            attempt=reply.attempt, attempt_over=False, save=node_leaves_text([pod.spec.node_name]) if leaves else ""
        )

    def receive(self, caller: ReportingPod, batch: WorkerReport) -> None:
        pass

    def missed(self, job: Key | None) -> None:
        """Silence of a sidecar means nothing here: a replica is lost with its node or its pod."""


def reply_for_replica(job: SpotInstanceJob, number: int, attempt: int) -> ReportReply:
    """Whether an attempt is over.

    A replica whose machine is being taken back has its next attempt in status at once, and is still asked for a last
    checkpoint: it is over when the next attempt runs.
    """
    status = status_of(job)
    replica = replica_of(status, number)
    if status.completion_time:
        return ReportReply(attempt=replica.attempt if replica is not None else attempt, attempt_over=True)
    if replica is None or attempt > replica.attempt:
        raise NotInCacheYet(
            f"attempt {attempt} of replica {number} of {job.metadata.key} is not known here: try again in a moment"
        )
    return ReportReply(
        attempt=replica.attempt, attempt_over=attempt < replica.attempt and replica.phase in ("Running", "Succeeded")
    )
