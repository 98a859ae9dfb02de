"""Selectors by label and by field, in lists and in watches."""

from collections.abc import AsyncIterator

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import BadRequest
from holdfast.cluster.protocol import Change, Cluster

from .engine import Engine
from .kinds import CONFIG_MAPS, EVENTS, GADGETS, NAMESPACES, PODS, config_map, gadget, key_of
from .pods import pod
from .watching import follow, is_about, steps

LABELS: dict[str, dict[str, str]] = {
    "a": {"tier": "gpu", "zone": "east"},
    "b": {"tier": "gpu", "zone": "west"},
    "c": {"tier": "cpu", "spot": ""},
    "d": {},
}


@pytest.fixture(scope="module")
async def shelf(engine: Engine) -> AsyncIterator[str]:
    """A namespace with a gadget for each set of labels."""
    namespace = await engine.namespace()
    for name, labels in LABELS.items():
        await engine.cluster.create(GADGETS, gadget(name, labels=labels), namespace=namespace)
    yield namespace
    await engine.cluster.delete(NAMESPACES, Key("", namespace))


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("", "abcd"),
        ("tier=gpu", "ab"),
        ("tier==gpu", "ab"),
        ("tier!=gpu", "cd"),
        ("tier in (gpu,cpu)", "abc"),
        ("tier in (gpu)", "ab"),
        ("tier notin (gpu)", "cd"),
        ("zone", "ab"),
        ("!zone", "cd"),
        ("spot=", "c"),
        ("tier=gpu,zone=west", "b"),
        ("tier,!zone", "c"),
        ("tier in (gpu,cpu),zone notin (east)", "bc"),
        ("tier=none", ""),
        ("nowhere", ""),
    ],
)
async def test_a_label_selector_lists_what_it_describes(
    cluster: Cluster, shelf: str, selector: str, names: str
) -> None:
    listing = await cluster.list(GADGETS, namespace=shelf, labels=selector)
    assert "".join(sorted(item.metadata.name for item in listing.items)) == names


@pytest.mark.parametrize("selector", ["tier=(", "tier in gpu", "!", "tier in (", "bad key=x", "a=b=c"])
async def test_a_label_selector_that_cannot_be_read_is_refused(cluster: Cluster, shelf: str, selector: str) -> None:
    with pytest.raises(BadRequest):
        await cluster.list(GADGETS, namespace=shelf, labels=selector)


async def test_a_field_selector_finds_an_object_by_name_and_namespace(cluster: Cluster, shelf: str) -> None:
    for fields, names in (
        ("metadata.name=b", ["b"]),
        ("metadata.name!=b", ["a", "c", "d"]),
        (f"metadata.namespace={shelf},metadata.name=c", ["c"]),
        ("metadata.name=b,metadata.name=c", []),
    ):
        listing = await cluster.list(GADGETS, namespace=shelf, fields=fields)
        assert sorted(item.metadata.name for item in listing.items) == names, fields


@pytest.mark.every_engine
async def test_both_selectors_must_hold(cluster: Cluster, shelf: str) -> None:
    listing = await cluster.list(GADGETS, namespace=shelf, labels="tier=gpu", fields="metadata.name!=a")
    assert [item.metadata.name for item in listing.items] == ["b"]


async def test_a_field_that_cannot_be_selected_by_is_refused(cluster: Cluster, shelf: str) -> None:
    with pytest.raises(BadRequest, match=r"spec\.size"):
        await cluster.list(GADGETS, namespace=shelf, fields="spec.size=1")


@pytest.mark.every_engine
async def test_pods_can_be_selected_by_phase_and_node(cluster: Cluster, namespace: str) -> None:
    for name in ("waits", "ended"):
        await cluster.create(PODS, pod(name, pool="none"), namespace=namespace)
    await cluster.patch_status(PODS, Key(namespace, "ended"), {"status": {"phase": "Failed"}})
    for fields, names in (
        ("status.phase=Failed", ["ended"]),
        ("status.phase!=Failed", ["waits"]),
        ("status.phase!=Succeeded,status.phase!=Failed", ["waits"]),
        ("spec.nodeName=", ["ended", "waits"]),
        ("spec.nodeName=nowhere", []),
    ):
        listing = await cluster.list(PODS, namespace=namespace, fields=fields)
        assert sorted(item.metadata.name for item in listing.items) == names, fields


async def test_events_can_be_selected_by_what_they_are_about(cluster: Cluster, namespace: str) -> None:
    told = (
        ("pulled", "Pod", "1", "Normal", "Pulled"),
        ("failed", "Pod", "1", "Warning", "Failed"),
        ("other", "Job", "2", "Warning", "Failed"),
    )
    for name, kind, uid, event_type, reason in told:
        about = {"kind": kind, "name": "a", "uid": uid, "namespace": namespace, "fieldPath": "spec.containers{main}"}
        body = {"involvedObject": about, "type": event_type, "reason": reason, "reportingComponent": "kubelet"}
        await cluster.create(EVENTS, {"metadata": {"name": name}, **body}, namespace=namespace)
    for fields, names in (
        ("involvedObject.kind=Pod,involvedObject.name=a", ["failed", "pulled"]),
        ("involvedObject.uid=2", ["other"]),
        (f"involvedObject.namespace={namespace},type=Warning", ["failed", "other"]),
        ("involvedObject.kind=Pod,type!=Normal", ["failed"]),
        ("reason=Pulled", ["pulled"]),
        ("involvedObject.fieldPath=spec.containers{main},reason=Pulled", ["pulled"]),
        ("reportingComponent=scheduler", []),
    ):
        listing = await cluster.list(EVENTS, namespace=namespace, fields=fields)
        assert sorted(item.metadata.name for item in listing.items) == names, fields
    with pytest.raises(BadRequest, match="message"):
        await cluster.list(EVENTS, namespace=namespace, fields="message=x")


@pytest.mark.every_engine
async def test_a_watch_shows_what_enters_and_leaves_the_selection(cluster: Cluster, namespace: str) -> None:
    start = (await cluster.list(CONFIG_MAPS, namespace=namespace)).resource_version
    outside = await cluster.create(CONFIG_MAPS, config_map("one", labels={"on": "no"}), namespace=namespace)
    inside = await cluster.patch(CONFIG_MAPS, key_of(outside), {"metadata": {"labels": {"on": "yes"}}})
    grown = await cluster.patch(CONFIG_MAPS, key_of(outside), {"data": {"k": "v"}})
    left = await cluster.patch(CONFIG_MAPS, key_of(outside), {"metadata": {"labels": {"on": "no"}}})
    await cluster.patch(CONFIG_MAPS, key_of(outside), {"data": {"k": "unseen"}})
    await cluster.create(CONFIG_MAPS, config_map("last", labels={"on": "yes"}), namespace=namespace)
    events = await follow(
        cluster, CONFIG_MAPS, version=start, namespace=namespace, labels="on=yes", stop=is_about(Change.ADDED, "last")
    )
    assert steps(events) == [("ADDED", "one"), ("MODIFIED", "one"), ("DELETED", "one"), ("ADDED", "last")]
    assert [event.object for event in events[:2]] == [inside, grown]
    assert events[2].resource_version == left.metadata.resource_version


async def test_a_watch_can_select_by_field(cluster: Cluster, namespace: str) -> None:
    start = (await cluster.list(CONFIG_MAPS, namespace=namespace)).resource_version
    for name in ("one", "two"):
        await cluster.create(CONFIG_MAPS, config_map(name), namespace=namespace)
    two = (await cluster.list(CONFIG_MAPS, namespace=namespace, fields="metadata.name=two")).items[0]
    await cluster.delete(CONFIG_MAPS, key_of(two))
    events = await follow(
        cluster,
        CONFIG_MAPS,
        version=start,
        namespace=namespace,
        fields="metadata.name=two",
        stop=is_about(Change.DELETED, "two"),
    )
    assert steps(events) == [("ADDED", "two"), ("DELETED", "two")]
