"""Pods of earlier tries: how long they hold up the next one, so that no workload runs twice."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from holdfast.api.builtin import Pod
from holdfast.planning.gpuworkload.observed import Observed
from holdfast.planning.gpuworkload.timing import Timing
from holdfast.planning.times import parse_time


def blocking_pods(observed: Observed, now: datetime, timing: Timing) -> tuple[Pod, ...]:
    """Those that may still run. What was on a node that is gone does not; a silent node is given some time."""
    return tuple(pod for pod in observed.stopping if _may_run(pod, observed, now, timing))


def give_up_times(observed: Observed, timing: Timing) -> Iterator[datetime]:
    """When pods on silent nodes are no longer waited for."""
    for pod in observed.stopping:
        node = observed.nodes.get(pod.spec.node_name)
        if pod.is_terminating and node is not None and not node.is_ready:
            yield _given_up_at(pod, timing)


def _may_run(pod: Pod, observed: Observed, now: datetime, timing: Timing) -> bool:
    if not pod.spec.node_name:
        return True  # until it is deleted, which takes a moment, the scheduler may bind it
    node = observed.nodes.get(pod.spec.node_name)
    if node is None:
        return False
    return node.is_ready or not pod.is_terminating or now < _given_up_at(pod, timing)


def _given_up_at(pod: Pod, timing: Timing) -> datetime:
    return parse_time(pod.metadata.deletion_timestamp) + timedelta(seconds=timing.lost_pod_timeout_s)
