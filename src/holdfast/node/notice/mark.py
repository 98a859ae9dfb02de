"""What a notice leaves on the Node: a condition and a NoSchedule taint, both `holdfast.dev/preempted`; and an Event.

Lists of a Node belong to several writers, and a merge patch replaces a list as a whole. So every patch carries the
resourceVersion that was read: if another writer was faster, the Node is read again.
"""

import hashlib
import re
from datetime import datetime, timedelta

from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.cluster.errors import AlreadyExists, Conflict
from holdfast.cluster.protocol import JSON, Cluster, Resource
from holdfast.cluster.resources import RawObject
from holdfast.node.notice.metadata import PreemptionNotice
from holdfast.pods.failure import PREEMPTED
from holdfast.runtime.events import EVENTS, EventType, event_body
from holdfast.times import format_time, parse_optional_time

# Whole Nodes: what other writers have put into them must be written back.
NODE_DOCUMENTS = Resource(group="", version="v1", kind="Node", plural="nodes", model=RawObject, namespaced=False)
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
# No machine lives so long after its time.
LATEST_END = timedelta(minutes=10)
NOTICED, WITHDRAWN = "PreemptionNotice", "NoticeWithdrawn"


class ReceivedNotice(Struct, frozen=True, kw_only=True):
    """A notice, when it came, and when the machine goes."""

    notice: PreemptionNotice
    at: datetime
    deadline: datetime

    @property
    def text(self) -> str:
        left_s = max(0, round((self.deadline - self.at).total_seconds()))
        return f"{self.notice.cloud} takes this node back at {format_time(self.deadline)}, {left_s} s after its notice"


def received(notice: PreemptionNotice, at: datetime, notice_s: float) -> ReceivedNotice:
    """Whole seconds, as the Node's condition has them: a restarted agent finds the same times there."""
    at = at.replace(microsecond=0)
    deadline = notice.deadline or at + timedelta(seconds=notice_s)
    return ReceivedNotice(notice=notice, at=at, deadline=deadline.replace(microsecond=0))


class NodeMarker:
    """Writes the mark of the agent's own Node."""

    def __init__(self, cluster: Cluster, node_name: str, *, instance: str) -> None:
        self._cluster = cluster
        self._key = Key("", node_name)
        self._instance = instance

    async def provider_id(self) -> str:
        node = await self._read()
        return str(node.document.get("spec", {}).get("providerID") or "")

    async def as_recorded(self, notice: ReceivedNotice) -> ReceivedNotice:
        """The notice with the times that an agent before this one has written, if the Node has this notice already."""
        condition = _marked_condition(await self._read())
        at, deadline = _recorded_times(condition) if condition is not None else (None, None)
        if at is None or deadline is None or notice.notice.deadline not in (None, deadline):
            return notice
        # A notice without a time can only be told by how old the condition is: a machine that was stopped and started
        # again may get its second one.
        if notice.notice.deadline is None and notice.at - deadline > LATEST_END:
            return notice
        return ReceivedNotice(notice=notice.notice, at=at, deadline=deadline)

    async def mark(self, notice: ReceivedNotice) -> None:
        """Two writes, or those of them that are missing. Raises `Conflict` when another writer was faster."""
        node = await self._read()
        condition = _marked_condition(node)
        if condition is None or _recorded_times(condition) != (notice.at, notice.deadline):
            node = await self._write_condition(node, _condition(notice))
        taint = _taint(notice)
        others = [each for each in _taints(node) if not _is_ours(each)]
        if taint not in _taints(node):
            await self._write_taints(node, [*others, taint])

    async def clear(self, at: datetime) -> bool:
        """Take the mark away if an agent has set it; one that a person has set, without a condition, stays.

        The condition goes last: if the agent dies in between, it is found again.
        """
        node = await self._read()
        if _marked_condition(node) is None:
            return False
        if any(_is_ours(taint) for taint in _taints(node)):
            node = await self._write_taints(node, [each for each in _taints(node) if not _is_ours(each)])
        await self._write_condition(node, _withdrawn_condition(at))
        return True

    async def record(self, kind: EventType, reason: str, message: str, at: datetime) -> None:
        """One Event: its name is a function of what it says, so that a repeat finds the first one."""
        node = (await self._read()).metadata
        digest = hashlib.sha256(f"{node.uid} {reason} {format_time(at)}".encode()).hexdigest()[:16]
        body = event_body(NODE_DOCUMENTS, node, kind, reason, message, at=at, instance=self._instance)
        name = f"{node.name[:200]}.{digest}"
        try:
            await self._cluster.create(EVENTS, {**body, "metadata": {"name": name}}, namespace="default")
        except AlreadyExists:
            return

    async def _read(self) -> RawObject:
        return await self._cluster.get(NODE_DOCUMENTS, self._key)

    async def _write_condition(self, node: RawObject, condition: JSON) -> RawObject:
        conditions: list[JSON] = node.document.get("status", {}).get("conditions") or []
        others = [each for each in conditions if each.get("type") != PREEMPTED]
        patch = {"metadata": _guard(node), "status": {"conditions": [*others, condition]}}
        return await self._cluster.patch_status(NODE_DOCUMENTS, self._key, patch)

    async def _write_taints(self, node: RawObject, taints: list[JSON]) -> RawObject:
        patch = {"metadata": _guard(node), "spec": {"taints": taints or None}}
        return await self._cluster.patch(NODE_DOCUMENTS, self._key, patch)


def _guard(node: RawObject) -> JSON:
    if not node.metadata.resource_version:
        raise Conflict(f"node {node.metadata.name} has no resourceVersion")
    return {"resourceVersion": node.metadata.resource_version}


def _recorded_times(condition: JSON) -> tuple[datetime | None, datetime | None]:
    """When the notice came and when the machine goes, by the condition that `_condition` has made."""
    named = TIMESTAMP.search(str(condition.get("message")))
    deadline = parse_optional_time(named[0]) if named is not None else None
    return parse_optional_time(condition.get("lastTransitionTime")), deadline


def _condition(notice: ReceivedNotice) -> JSON:
    at = format_time(notice.at)
    return {
        "type": PREEMPTED,
        "status": "True",
        "reason": NOTICED,
        "message": notice.text,
        "lastHeartbeatTime": at,
        "lastTransitionTime": at,
    }


def _withdrawn_condition(at: datetime) -> JSON:
    return {
        "type": PREEMPTED,
        "status": "False",
        "reason": WITHDRAWN,
        "message": "the cloud does not take this node back",
        "lastHeartbeatTime": format_time(at),
        "lastTransitionTime": format_time(at),
    }


def _taint(notice: ReceivedNotice) -> JSON:
    """The value says when the node goes; a taint's value has no colons."""
    deadline = format_time(notice.deadline).replace("-", "").replace(":", "")
    return {"key": PREEMPTED, "value": deadline, "effect": "NoSchedule", "timeAdded": format_time(notice.at)}


def _marked_condition(node: RawObject) -> JSON | None:
    """The condition that an agent has set, while it holds."""
    conditions: list[JSON] = node.document.get("status", {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == PREEMPTED and each.get("status") == "True"), None)


def _taints(node: RawObject) -> list[JSON]:
    taints: list[JSON] = node.document.get("spec", {}).get("taints") or []
    return taints


def _is_ours(taint: JSON) -> bool:
    return bool(taint.get("key") == PREEMPTED and taint.get("effect") == "NoSchedule")
