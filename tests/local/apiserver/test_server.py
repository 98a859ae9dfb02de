"""The protocol's edges in this engine: our kinds, versions, watchers, logs, closing."""

import asyncio
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from msgspec import Struct

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import BadRequest, Conflict, Expired, Invalid, NotFound, ServerError, Undecodable
from holdfast.cluster.protocol import JSON, Change, Cluster, Event, Resource
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from tests.contract.kinds import (
    CONFIG_MAPS,
    DEFINITIONS,
    GADGETS,
    NODES,
    PODS,
    Document,
    config_map,
    definition,
    key_of,
)

from .bodies import BACKUPS, OLD_BACKUPS, TRAINING_JOBS, pod, training_job
from .clock import Clock

ONE = Key("default", "one")


def test_it_is_a_cluster(cluster: EmbeddedCluster) -> None:
    served: Cluster = cluster
    assert served is cluster


async def test_times_and_uids_come_from_outside(cluster: EmbeddedCluster, clock: Clock) -> None:
    clock.advance(60)
    made = await cluster.create(CONFIG_MAPS, config_map("one"), namespace="default")
    assert made.metadata.creation_timestamp == "2026-01-02T03:05:05Z"


async def test_our_kinds_get_their_defaults_and_their_rules(cluster: EmbeddedCluster) -> None:
    made = await cluster.create(TRAINING_JOBS, training_job(), namespace="default")
    assert made.spec["framework"] == "pytorch"
    with pytest.raises(Invalid) as refused:
        await cluster.create(TRAINING_JOBS, training_job("two", numWorkers=101), namespace="default")
    assert [cause.field for cause in refused.value.causes] == ["spec.numWorkers"]
    assert str(refused.value).startswith('TrainingJob.ml.example.com "two" is invalid: spec.numWorkers: Invalid value')
    with pytest.raises(BadRequest, match=r'strict decoding error: unknown field "spec\.numWorker"$'):
        await cluster.create(TRAINING_JOBS, training_job("two", numWorker=1), namespace="default")


async def test_what_may_change_when_is_asked_of_the_old_state(cluster: EmbeddedCluster) -> None:
    await cluster.create(TRAINING_JOBS, training_job(), namespace="default")
    await cluster.patch(TRAINING_JOBS, ONE, {"spec": {"model": "cnn"}})
    await cluster.patch_status(TRAINING_JOBS, ONE, {"status": {"state": "Running"}})
    with pytest.raises(Invalid) as refused:
        await cluster.patch(TRAINING_JOBS, ONE, {"spec": {"model": "linear"}})
    assert {cause.field for cause in refused.value.causes} == {"spec.model"}
    assert (await cluster.patch(TRAINING_JOBS, ONE, {"spec": {"numWorkers": 3}})).metadata.generation == 3


async def test_a_generated_name_is_held_to_the_rule_about_names(cluster: EmbeddedCluster) -> None:
    long = {**training_job(), "metadata": {"generateName": "a" * 42}}
    with pytest.raises(Invalid) as refused:
        await cluster.create(TRAINING_JOBS, long, namespace="default")
    assert {cause.field for cause in refused.value.causes} == {"metadata.name"}


def backup(name: str) -> JSON:
    spec = {
        "schedule": "immediately",
        "podRef": {"name": "p", "namespace": "default"},
        "registry": {"url": "registry.invalid", "repository": "r"},
    }
    return {"metadata": {"name": name}, "spec": spec}


class Versioned(Object, frozen=True, kw_only=True, rename="camel"):
    api_version: str
    kind: str


def whole(served: Resource[Document]) -> Resource[Versioned]:
    return Resource(group=served.group, version=served.version, kind=served.kind, plural=served.plural, model=Versioned)


async def test_a_kind_of_two_versions_is_one_kind(cluster: EmbeddedCluster) -> None:
    start = (await cluster.list(BACKUPS)).resource_version
    old = await cluster.create(OLD_BACKUPS, backup("one"), namespace="default")
    new = await cluster.get(BACKUPS, ONE)
    assert new == old
    patched = await cluster.patch(BACKUPS, ONE, {"metadata": {"labels": {"a": "b"}}})
    assert await cluster.patch(OLD_BACKUPS, ONE, {"metadata": {"labels": {"a": "b"}}}) == patched
    assert patched.metadata.generation == 1
    for served in (BACKUPS, OLD_BACKUPS):
        found = await cluster.get(whole(served), ONE)
        assert (found.api_version, found.kind) == (served.api_version, "CheckpointBackup")
        async with asyncio.timeout(60), cluster.watch(whole(served), resource_version=start) as events:
            seen = [await anext(events), await anext(events)]
        assert [event.change for event in seen] == [Change.ADDED, Change.MODIFIED]
        assert {event.object.api_version for event in seen if event.object} == {served.api_version}


async def test_another_version_in_the_body_is_refused(cluster: EmbeddedCluster) -> None:
    with pytest.raises(BadRequest, match=r"apiVersion in the data \(migration\.dcnlab\.com/v1\) does not match"):
        await cluster.create(OLD_BACKUPS, {**backup("one"), "apiVersion": BACKUPS.api_version}, namespace="default")


@pytest.mark.parametrize(
    "unknown",
    [
        Resource(group="apps", version="v1", kind="StatefulSet", plural="statefulsets", model=Document),
        Resource(group="batch", version="v1beta1", kind="Job", plural="jobs", model=Document),
    ],
)
async def test_a_kind_that_is_not_served_is_not_found(cluster: EmbeddedCluster, unknown: Resource[Document]) -> None:
    with pytest.raises(NotFound, match="the server could not find the requested resource"):
        await cluster.list(unknown)
    with pytest.raises(NotFound, match="the server could not find the requested resource"):
        await cluster.create(unknown, config_map("one"), namespace="default")


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": "one"},
        {"metadata": {"name": "one", "labels": []}},
        {"metadata": {"name": "one", "labels": {"a": 1}}},
        {"metadata": {"name": 1}},
        {"metadata": {"name": "one", "finalizers": "holdfast.dev/a"}},
        {"metadata": {"name": "one", "ownerReferences": [1]}},
        {"metadata": {"name": "one"}, "data": "text"},
        {"metadata": {"name": "one"}, "data": {"k": {"deep": 1}}},
        {"metadata": {"name": "one", "namespace": "kube-system"}},
        {"kind": "Secret", "metadata": {"name": "one"}},
    ],
)
async def test_a_body_that_makes_no_sense_is_a_bad_request(cluster: EmbeddedCluster, body: JSON) -> None:
    with pytest.raises(BadRequest):
        await cluster.create(CONFIG_MAPS, body, namespace="default")
    await cluster.create(CONFIG_MAPS, config_map("one"), namespace="default")
    with pytest.raises(BadRequest):
        await cluster.patch(CONFIG_MAPS, ONE, {**body, "apiVersion": "v1"})


async def test_a_body_that_is_no_object_is_a_bad_request(cluster: EmbeddedCluster) -> None:
    with pytest.raises(BadRequest, match="an object is a map of fields"):
        await cluster.create(CONFIG_MAPS, Text("one"), namespace="default")


async def test_a_patch_that_takes_the_name_away_is_refused(cluster: EmbeddedCluster) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("one"), namespace="default")
    for patch in ({"metadata": None}, {"metadata": {"name": "two"}}, {"metadata": {"namespace": "two"}}):
        with pytest.raises(BadRequest):
            await cluster.patch(CONFIG_MAPS, ONE, patch)
    assert await cluster.get(CONFIG_MAPS, ONE) == made


async def test_a_new_object_brings_no_version(cluster: EmbeddedCluster) -> None:
    with pytest.raises(ServerError, match="resourceVersion should not be set"):
        await cluster.create(CONFIG_MAPS, config_map("one", resourceVersion="1"), namespace="default")


async def test_a_namespaced_object_needs_a_namespace_and_may_bring_it(cluster: EmbeddedCluster) -> None:
    with pytest.raises(BadRequest, match="ConfigMap lives in a namespace, and none was given"):
        await cluster.create(CONFIG_MAPS, config_map("one"))
    made = await cluster.create(CONFIG_MAPS, config_map("one", namespace="default"))
    assert key_of(made) == ONE


async def test_the_namespace_of_a_cluster_scoped_object_is_not_looked_at(cluster: EmbeddedCluster) -> None:
    made = await cluster.create(NODES, {"metadata": {"name": "one"}}, namespace="default")
    assert key_of(made) == Key("", "one")
    assert await cluster.get(NODES, ONE) == made
    with pytest.raises(BadRequest, match="does not match the namespace"):
        await cluster.create(NODES, {"metadata": {"name": "two", "namespace": "default"}})
    await cluster.delete(NODES, ONE)


async def test_a_reader_can_not_change_what_is_stored(cluster: EmbeddedCluster) -> None:
    body = config_map("one", data={"k": "v"})
    made = await cluster.create(CONFIG_MAPS, body, namespace="default")
    body["data"]["k"] = made.data["k"] = "changed"
    seen = await cluster.get(CONFIG_MAPS, ONE)
    assert seen.data == {"k": "v"}


def gadgets(spec: JSON) -> JSON:
    """A definition with that schema of the spec."""
    defined = definition(GADGETS)
    version = defined["spec"]["versions"][0]
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    return {**defined, "spec": {**defined["spec"], "versions": [{**version, "schema": schema}]}}


async def test_true_and_one_are_not_the_same(cluster: EmbeddedCluster) -> None:
    loose = gadgets({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    await cluster.create(DEFINITIONS, loose)
    await cluster.create(GADGETS, {"metadata": {"name": "one"}, "spec": {"flag": 1}}, namespace="default")
    patched = await cluster.patch(GADGETS, ONE, {"spec": {"flag": True}})
    assert patched.spec["flag"] is True
    assert patched.metadata.generation == 2


class Text(Struct, array_like=True):
    text: str


class Picky(Object, frozen=True, kw_only=True):
    data: dict[str, int]


async def test_an_object_that_does_not_fit_its_model_is_said_so(cluster: EmbeddedCluster) -> None:
    await cluster.create(CONFIG_MAPS, config_map("one", data={"k": "v"}), namespace="default")
    picky = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps", model=Picky)
    with pytest.raises(Undecodable, match='configmaps "one" does not fit its model'):
        await cluster.get(picky, ONE)


@pytest.mark.parametrize("version", ["", "abc", "-1", "1.5"])
async def test_a_watch_needs_a_version(cluster: EmbeddedCluster, version: str) -> None:
    with pytest.raises(BadRequest, match="a resource version is a number that a list gave"):
        async with cluster.watch(CONFIG_MAPS, resource_version=version):
            pass


async def test_a_watch_with_a_selector_that_cannot_be_read_is_refused(cluster: EmbeddedCluster) -> None:
    with pytest.raises(BadRequest):
        async with cluster.watch(CONFIG_MAPS, resource_version="1", labels="a=("):
            pass


async def test_a_watcher_that_is_too_slow_is_cut_off_and_has_to_list_again(clock: Clock) -> None:
    cluster = await open_cluster(None, now=clock, rng=Random(7), window=5)
    start = (await cluster.list(CONFIG_MAPS)).resource_version
    async with asyncio.timeout(60), cluster.watch(CONFIG_MAPS, resource_version=start) as events:
        for number in range(5):
            await cluster.create(CONFIG_MAPS, config_map(f"c{number}"), namespace="default")
        first = await anext(events)
        for number in range(5, 20):
            await cluster.create(CONFIG_MAPS, config_map(f"c{number}"), namespace="default")
        assert [event async for event in events] == []
    with pytest.raises(Expired):
        async with cluster.watch(CONFIG_MAPS, resource_version=first.resource_version) as events:
            await anext(events)
    await cluster.close()


async def test_closing_ends_the_watches(clock: Clock) -> None:
    cluster = await open_cluster(None, now=clock, rng=Random(7))
    start = (await cluster.list(CONFIG_MAPS)).resource_version

    async def watched() -> list[Event[Document]]:
        async with cluster.watch(CONFIG_MAPS, resource_version=start) as events:
            return [event async for event in events]

    watching = asyncio.create_task(watched())
    await asyncio.sleep(0)
    await cluster.close()
    assert await asyncio.wait_for(watching, 60) == []


async def test_concurrent_writers_of_one_name_get_one_object(cluster: EmbeddedCluster) -> None:
    answers = await asyncio.gather(
        *(cluster.create(CONFIG_MAPS, config_map("one"), namespace="default") for _ in range(10)),
        return_exceptions=True,
    )
    assert sum(isinstance(answer, Document) for answer in answers) == 1
    assert {type(answer).__name__ for answer in answers} == {"Document", "AlreadyExists"}


async def test_of_concurrent_guarded_writes_one_wins(cluster: EmbeddedCluster) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("one"), namespace="default")
    guard = {"metadata": {"resourceVersion": made.metadata.resource_version}}
    answers = await asyncio.gather(
        *(cluster.patch(CONFIG_MAPS, ONE, {**guard, "data": {"k": str(number)}}) for number in range(10)),
        return_exceptions=True,
    )
    won = [answer for answer in answers if isinstance(answer, Document)]
    assert [await cluster.get(CONFIG_MAPS, ONE)] == won
    assert sum(isinstance(answer, Conflict) for answer in answers) == 9


async def test_logs_come_from_the_kubelet_of_the_pod(clock: Clock) -> None:
    async def logs(key: Key, container: str, tail_lines: int | None, limit_bytes: int | None) -> bytes:
        return f"{key} {container} {tail_lines} {limit_bytes}".encode()

    cluster = await open_cluster(None, now=clock, rng=Random(7), pod_logs=logs)
    await cluster.create(PODS, pod(), namespace="default")
    assert await cluster.pod_log(ONE, container="main", tail_lines=3) == b"default/one main 3 None"
    with pytest.raises(NotFound, match='pods "two" not found'):
        await cluster.pod_log(Key("default", "two"))
    await cluster.close()


async def test_a_log_is_followed_where_the_pods_run(clock: Clock) -> None:
    async def follow(key: Key, container: str, tail_lines: int | None) -> AsyncIterator[bytes]:
        for piece in (str(key), container, str(tail_lines)):
            yield piece.encode()

    cluster = await open_cluster(None, now=clock, rng=Random(7), follow_logs=follow)
    await cluster.create(PODS, pod(), namespace="default")
    pieces = [piece async for piece in cluster.follow_log(ONE, container="main", tail_lines=2)]
    assert pieces == [b"default/one", b"main", b"2"]
    with pytest.raises(NotFound, match='pods "two" not found'):
        await anext(cluster.follow_log(Key("default", "two")))
    await cluster.close()


async def test_without_a_runner_there_are_no_logs(cluster: EmbeddedCluster) -> None:
    await cluster.create(PODS, pod(), namespace="default")
    with pytest.raises(NotFound, match="nothing here runs pods"):
        await cluster.pod_log(ONE)
    with pytest.raises(NotFound, match="nothing here runs pods"):
        await anext(cluster.follow_log(ONE))


FULL_DISK = """
    import asyncio, pathlib, random, resource, sys
    from datetime import UTC, datetime
    from holdfast.local.apiserver.server import open_cluster
    from holdfast.cluster.errors import ServerError
    from tests.contract.kinds import CONFIG_MAPS, config_map

    async def main(path):
        cluster = await open_cluster(path, now=lambda: datetime.now(UTC), rng=random.Random(0))
        kept = await cluster.create(CONFIG_MAPS, config_map("kept"), namespace="default")
        before = await cluster.list(CONFIG_MAPS)
        # No file may grow beyond this: the kernel refuses as it does when the disk is full.
        size = max(each.stat().st_size for each in path.parent.iterdir())
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        writes = [
            cluster.create(CONFIG_MAPS, config_map(f"lost{n}", data={"k": "x" * 10_000}), namespace="default")
            for n in range(50)
        ]
        answers = await asyncio.gather(*writes, return_exceptions=True)
        assert {type(answer) for answer in answers} == {ServerError}, answers
        assert await cluster.list(CONFIG_MAPS) == before
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await cluster.create(CONFIG_MAPS, config_map("later"), namespace="default")
        await cluster.close()

    asyncio.run(main(pathlib.Path(sys.argv[1])))
"""


async def test_a_full_disk_refuses_writes_and_leaves_everything_as_it_was(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "objects.db"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(FULL_DISK), path, cwd=Path(__file__).parents[3]
    )
    assert await process.wait() == 0
    cluster = await open_cluster(path, now=clock, rng=Random(7))
    found = await cluster.list(CONFIG_MAPS, namespace="default")
    assert [item.metadata.name for item in found.items] == ["kept", "later"]
    await cluster.close()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"metadata": {"name": "other"}}, "metadata.name"),
        ({"spec": {"scope": "Galactic"}}, "spec.scope"),
        ({"spec": {"group": ""}}, "spec.group"),
        ({"spec": {"versions": []}}, "spec.versions"),
        ({"spec": {"versions": [{"name": "v1"}]}}, "spec.versions"),
        ({"spec": {"names": {"plural": "gadgets"}}}, "spec.names.kind"),
    ],
)
async def test_a_definition_that_makes_no_sense_is_refused_with_its_path(
    cluster: EmbeddedCluster, change: JSON, field: str
) -> None:
    sound = definition(GADGETS)
    body = {part: {**sound[part], **change.get(part, {})} for part in sound}
    with pytest.raises(Invalid) as refused:
        await cluster.create(DEFINITIONS, body)
    assert field in {cause.field for cause in refused.value.causes}
    with pytest.raises(NotFound):
        await cluster.list(GADGETS)


async def test_a_changed_definition_counts_from_its_answer_on(cluster: EmbeddedCluster) -> None:
    made = await cluster.create(DEFINITIONS, gadgets({"type": "object"}))
    with pytest.raises(BadRequest):
        await cluster.create(GADGETS, {"metadata": {"name": "one"}, "spec": {"size": 1}}, namespace="default")
    wider = gadgets({"type": "object", "properties": {"size": {"type": "integer"}}})
    await cluster.patch(DEFINITIONS, key_of(made), {"spec": {"versions": wider["spec"]["versions"]}})
    await cluster.create(GADGETS, {"metadata": {"name": "one"}, "spec": {"size": 1}}, namespace="default")
