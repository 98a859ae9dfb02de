"""Machines that need no machine: what is bound to one runs at once, and stops when it is told to."""

from contextlib import suppress
from datetime import datetime

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import JSON, DeleteOptions
from holdfast.cluster.resources import PODS
from holdfast.runtime.controller import Controller, Done, Result, TerminalError
from holdfast.runtime.informer import Store
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now
from holdfast.runtime.read_your_writes import WriteTracker
from holdfast.times import format_time

STOPPED = 143


class Kubelets:
    """Pods run until somebody ends them; on the machines named in `broken` nothing happens any more."""

    def __init__(self, pods: Store[Pod], writer: WriteTracker, now: Now) -> None:
        self._pods = pods
        self._writer = writer
        self._now = now
        self.broken: set[str] = set()

    async def reconcile(self, key: Key) -> Result:
        pod, session = self._pods.get(key), self._writer.for_key(key)
        if pod is None or not pod.spec.node_name or pod.spec.node_name in self.broken:
            return Done()
        with suppress(NotFound):
            if pod.is_terminating:
                if not pod.is_finished:
                    status = ended(pod, STOPPED, self._now())
                    await session.patch_status(PODS, key, {"status": status})
                if pod.metadata.deletion_grace_period_seconds:
                    await session.delete(PODS, key, DeleteOptions(uid=pod.metadata.uid, grace_period_s=0))
            elif pod.status.phase == "Pending":
                await session.patch_status(PODS, key, {"status": running(pod, self._now())})
        return Done()

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        raise AssertionError(error)


def kubelets(operator: Operator, *, now: Now) -> tuple[Kubelets, Controller[Pod]]:
    writer = operator.writer()
    reconciler = Kubelets(operator.store(PODS), writer, now)
    return reconciler, Controller(name="kubelets", resource=PODS, reconciler=reconciler, writer=writer)


def running(pod: Pod, now: datetime) -> JSON:
    state = {"running": {"startedAt": format_time(now)}}
    return {"phase": "Running", "startTime": format_time(now), **_told(pod, now, "True", state)}


def ended(pod: Pod, exit_code: int, now: datetime) -> JSON:
    reason = "Error" if exit_code else "Completed"
    state = {"terminated": {"exitCode": exit_code, "reason": reason, "finishedAt": format_time(now)}}
    return {"phase": "Failed" if exit_code else "Succeeded", **_told(pod, now, "False", state)}


def _told(pod: Pod, now: datetime, ready: str, state: JSON) -> JSON:
    others = [
        {"type": each.type, "status": each.status, "reason": each.reason}
        for each in pod.status.conditions
        if each.type not in ("Ready", "ContainersReady")
    ]
    conditions = [
        {"type": kind, "status": ready, "lastTransitionTime": format_time(now)} for kind in ("Ready", "ContainersReady")
    ]
    containers = [
        {
            "name": each.name,
            "image": "",
            "imageID": "",
            "ready": ready == "True",
            "restartCount": 0,
            "state": state,
        }
        for each in pod.spec.containers
    ]
    return {"conditions": [*others, *conditions], "containerStatuses": containers}
