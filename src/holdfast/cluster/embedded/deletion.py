"""What a delete does to an object: marks it, for its finalizers and its grace period, or ends it."""

from datetime import datetime, timedelta

from msgspec import Struct

from holdfast.cluster.embedded.kind import ServedKind
from holdfast.cluster.embedded.kinds.namespaces import CONTENT, IMMORTAL
from holdfast.cluster.embedded.metadata import FOREGROUND, ORPHAN
from holdfast.cluster.embedded.stored import same
from holdfast.cluster.errors import Forbidden
from holdfast.cluster.protocol import JSON, Propagation
from holdfast.planning.times import format_time, parse_time

_FINALIZER = {Propagation.FOREGROUND: FOREGROUND, Propagation.ORPHAN: ORPHAN}


class DeletionResult(Struct, frozen=True, kw_only=True):
    """The object as it is marked, if that changes it, and whether it ends now."""

    marked: JSON | None = None
    ends: bool


def plan_deletion(
    kind: ServedKind, document: JSON, propagation: Propagation, grace_period_s: int | None, now: datetime
) -> DeletionResult:
    if _has_content(document):
        if document["metadata"]["name"] in IMMORTAL:
            name = document["metadata"]["name"]
            raise Forbidden(f'namespaces "{name}" is forbidden: this namespace may not be deleted')
        return _waiting(document, _terminating(document, now))
    if kind.special.grace_s is not None:
        graceful = _gracefully(kind, document, propagation, grace_period_s, now)
        if graceful is not None:
            return graceful
    marked = _with_propagation(document, propagation)
    if not marked["metadata"].get("finalizers"):
        return DeletionResult(ends=True)
    return _waiting(document, _mark(marked, now, 0))


def ends_with_update(new: JSON, old: JSON) -> bool:
    """Whether an update took the last finalizer off an object that was only waiting for that."""
    before = old["metadata"]
    return (
        bool(before.get("deletionTimestamp"))
        and not new["metadata"].get("finalizers")
        and not before.get("deletionGracePeriodSeconds")
        and not _has_content(new)
    )


def _has_content(document: JSON) -> bool:
    """Whether it is a namespace that has yet to be emptied."""
    is_namespace = (document["apiVersion"], document["kind"]) == ("v1", "Namespace")
    return is_namespace and CONTENT in document.get("spec", {}).get("finalizers", [])


def _gracefully(
    kind: ServedKind, document: JSON, propagation: Propagation, asked_s: int | None, now: datetime
) -> DeletionResult | None:
    """The verdict on an object whose runner ends it; None when there is no grace left to speak of."""
    metadata = document["metadata"]
    if "deletionTimestamp" in metadata:
        left_s = metadata.get("deletionGracePeriodSeconds")
        if not left_s:
            return None
        if asked_s is None or asked_s >= left_s:
            return DeletionResult(ends=False)
        # Counted from the first request; in the past it can't lie.
        asked_at = parse_time(metadata["deletionTimestamp"]) - timedelta(seconds=left_s)
        ends_at = asked_at + timedelta(seconds=asked_s)
        period_s = asked_s if ends_at >= now or asked_s == 0 else 1
        marked = _with_propagation(document, propagation)
        marked["metadata"] |= {
            "deletionTimestamp": format_time(max(ends_at, now)),
            "deletionGracePeriodSeconds": period_s,
        }
    else:
        assert kind.special.grace_s is not None
        period_s = kind.special.grace_s(document, asked_s)
        marked = _mark(_with_propagation(document, propagation), now, period_s)
    stays = period_s > 0 or bool(marked["metadata"].get("finalizers"))
    return DeletionResult(marked=marked, ends=not stays)


def _with_propagation(document: JSON, propagation: Propagation) -> JSON:
    """The finalizers that keep the owner until the collector has dealt with its dependents."""
    metadata = dict(document["metadata"])
    finalizers = [each for each in metadata.pop("finalizers", []) if each not in (ORPHAN, FOREGROUND)]
    if propagation in _FINALIZER:
        finalizers.append(_FINALIZER[propagation])
    return {**document, "metadata": {**metadata, "finalizers": finalizers} if finalizers else metadata}


def _mark(document: JSON, now: datetime, grace_period_s: int) -> JSON:
    metadata = document["metadata"]
    # A mark is a change of what is wanted.
    if "deletionTimestamp" not in metadata and "generation" in metadata:
        metadata["generation"] += 1
    ends_at = now + timedelta(seconds=grace_period_s)
    if "deletionTimestamp" not in metadata or parse_time(metadata["deletionTimestamp"]) > ends_at:
        metadata["deletionTimestamp"] = format_time(ends_at)
    metadata["deletionGracePeriodSeconds"] = grace_period_s
    return document


def _terminating(namespace: JSON, now: datetime) -> JSON:
    metadata = {"deletionTimestamp": format_time(now), **namespace["metadata"]}
    return {**namespace, "metadata": metadata, "status": {**namespace["status"], "phase": "Terminating"}}


def _waiting(old: JSON, new: JSON) -> DeletionResult:
    return DeletionResult(marked=None if same(old, new) else new, ends=False)
