"""What has become of a workload's try, if it is lost."""

from msgspec import structs

from holdfast.planning.gpuworkload.binding import is_overdue, pending_step, start_problem
from holdfast.planning.gpuworkload.observed import Observed
from holdfast.planning.gpuworkload.timing import Timing
from holdfast.planning.gpuworkload.tries import last_attempt
from holdfast.planning.trainingjob.classes import WorkerFailure
from holdfast.planning.trainingjob.loss import classify_failure, could_not_start, failure_class_of_node


def find_failure(observed: Observed, timing: Timing) -> WorkerFailure | None:
    """Why the present try can't go on; None while it can."""
    if any(pod.status.phase == "Succeeded" for pod in observed.pods):
        return None  # its Job will say so
    return _of_pod(observed) or _of_node(observed, timing) or _of_job(observed) or _unbound(observed, timing)


def _of_pod(observed: Observed) -> WorkerFailure | None:
    broken = (pod for pod in observed.pods if pod.status.phase == "Failed" or pod.is_terminating)
    for pod in broken:
        loss = classify_failure(pod, observed.nodes, collateral=False)
        if loss is not None:
            # In a later try the command was found before, or its node differs.
            is_first = last_attempt(observed.workload) == 0 and not loss.is_free
            return structs.replace(loss, permanent=True) if is_first and could_not_start(pod) else loss
    return None


def _of_node(observed: Observed, timing: Timing) -> WorkerFailure | None:
    """A node that is silent may come back to a pod that it has; one that has none yet is soon better off elsewhere."""
    node = observed.nodes.get(observed.node)
    if node is None:
        return WorkerFailure(cause="infrastructure", message=f"node {observed.node} is gone")
    if pending_step(observed) != "node" or not is_overdue(observed, timing):
        return None
    return WorkerFailure(
        cause=failure_class_of_node(node),
        message=f"node {observed.node} was not ready any more when the pod was to start",
    )


def _of_job(observed: Observed) -> WorkerFailure | None:
    job = observed.job
    if job is None or job.metadata.deletion_timestamp:
        if observed.status.phase == "Scheduling":
            return None  # it is still to be made
        return WorkerFailure(cause="infrastructure", message="its Job was deleted from outside")
    is_over = job.condition("Failed") or job.condition("FailureTarget")
    # A pod that failed by itself stays to be looked at. One that still seems to run will be seen to have failed.
    if is_over and not observed.pods:
        return WorkerFailure(cause="infrastructure", message="its pod was deleted from outside")
    return None


def _unbound(observed: Observed, timing: Timing) -> WorkerFailure | None:
    if not is_overdue(observed, timing):
        return None
    message = f"its pod did not get node {observed.node} within {timing.bind_timeout_s:.0f} s"
    because = start_problem(observed)
    return WorkerFailure(cause="infrastructure", message=f"{message}: {because}" if because else message)
