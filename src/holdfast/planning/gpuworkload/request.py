"""What a GPUWorkload asks of the placement: a node for its next try."""

from holdfast.planning.admission import PodRequirements
from holdfast.planning.gpuworkload.observed import Observed
from holdfast.planning.gpuworkload.tries import last_attempt, reservation_id
from holdfast.planning.placement import Request


def request_for(observed: Observed, shape: PodRequirements) -> Request:
    """`shape` is of its pod. Where its last try was lost is taken only if nothing else will do."""
    workload = observed.workload
    avoided = observed.status.avoided_node
    number = last_attempt(workload) + (0 if observed.node else 1)
    return Request(
        key=workload.metadata.key,
        uid=workload.metadata.uid,
        place=reservation_id(workload, number),
        shape=shape,
        gpus=workload.spec.gpu_count,
        strategy=workload.spec.scheduling_strategy,
        priority=workload.spec.priority,
        since=workload.metadata.creation_timestamp,
        avoided=(avoided,) if avoided else (),
    )
