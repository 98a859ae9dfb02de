"""A write as the watchers of a selection see it."""

import pytest

from holdfast.cluster.protocol import Change
from holdfast.local.apiserver.catalog import builtin_kinds
from holdfast.local.apiserver.selectors import WatchFilter
from holdfast.local.apiserver.storage import StoredObject, StoredWrite, stored

KINDS = {kind.kind: kind for kind in builtin_kinds()}


def pod(on: str, version: int, *, namespace: str = "default", node: str = "") -> StoredObject:
    metadata = {"name": "one", "namespace": namespace, "uid": "u", "labels": {"on": on}}
    return stored(
        "pods", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": node}}, version
    )


def selection(*, namespace: str = "", labels: str = "", fields: str = "") -> WatchFilter:
    return WatchFilter(KINDS["Pod"], namespace, labels, fields)


@pytest.mark.parametrize(
    ("change", "before", "after", "seen"),
    [
        (Change.ADDED, None, "yes", Change.ADDED),
        (Change.ADDED, None, "no", None),
        (Change.MODIFIED, "yes", "yes", Change.MODIFIED),
        (Change.MODIFIED, "no", "yes", Change.ADDED),
        (Change.MODIFIED, "yes", "no", Change.DELETED),
        (Change.MODIFIED, "no", "no", None),
        (Change.DELETED, "yes", "yes", Change.DELETED),
        (Change.DELETED, "no", "no", None),
    ],
)
def test_entering_and_leaving_are_an_arrival_and_an_end(
    change: Change, before: str | None, after: str, seen: Change | None
) -> None:
    old = pod(before, 1) if before else None
    told = selection(labels="on=yes").visible_event(StoredWrite(change=change, old=old, new=pod(after, 2)))
    assert (told.change if told else None) == seen
    if told is not None:
        assert told.version == 2
        assert told.new.meta.labels == {"on": "yes"}


def test_what_left_is_shown_as_it_last_was_at_the_version_at_which_it_left() -> None:
    told = selection(fields="spec.nodeName=a").visible_event(
        StoredWrite(change=Change.MODIFIED, old=pod("yes", 1, node="a"), new=pod("yes", 2, node="b"))
    )
    assert told is not None
    assert told.new.json()["spec"] == {"nodeName": "a"}
    assert told.new.meta.resource_version == "2"


def test_other_namespaces_are_not_seen() -> None:
    write = StoredWrite(change=Change.ADDED, old=None, new=pod("yes", 1, namespace="other"))
    assert selection(namespace="default").visible_event(write) is None
    assert selection(namespace="other").visible_event(write) is not None
    assert selection().visible_event(write) is not None
