"""What create, get, list, patch, replace and delete answer."""

import re

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import AlreadyExists, BadRequest, Invalid, NotFound
from holdfast.cluster.protocol import JSON, Cluster, DeleteOptions

from .kinds import CONFIG_MAPS, GADGETS, JOBS, config_map, gadget, key_of


@pytest.mark.every_engine
async def test_a_created_object_can_be_read_back_with_what_the_cluster_added(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(
        GADGETS,
        gadget("one", spec={"size": 3}, labels={"a": "b"}, annotations={"c": "d"}),
        namespace=namespace,
    )
    assert key_of(made) == Key(namespace, "one")
    assert made.spec["size"] == 3
    assert made.metadata.labels == {"a": "b"}
    assert made.metadata.annotations == {"c": "d"}
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", made.metadata.uid)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made.metadata.creation_timestamp)
    assert int(made.metadata.resource_version) > 0
    assert await cluster.get(GADGETS, key_of(made)) == made
    assert (await cluster.list(GADGETS, namespace=namespace)).items == (made,)


async def test_each_object_gets_a_uid_of_its_own_even_under_an_old_name(cluster: Cluster, namespace: str) -> None:
    first = await cluster.create(CONFIG_MAPS, config_map("one"), namespace=namespace)
    await cluster.delete(CONFIG_MAPS, key_of(first))
    second = await cluster.create(CONFIG_MAPS, config_map("one"), namespace=namespace)
    assert second.metadata.uid != first.metadata.uid
    assert int(second.metadata.resource_version) > int(first.metadata.resource_version)


async def test_a_name_that_is_taken_is_refused_and_the_object_stays_as_it_is(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("one", data={"k": "old"}), namespace=namespace)
    with pytest.raises(AlreadyExists):
        await cluster.create(CONFIG_MAPS, config_map("one", data={"k": "new"}), namespace=namespace)
    assert await cluster.get(CONFIG_MAPS, key_of(made)) == made


@pytest.mark.every_engine
async def test_what_is_not_there_is_not_found_by_any_verb(cluster: Cluster, namespace: str) -> None:
    missing = Key(namespace, "missing")
    with pytest.raises(NotFound):
        await cluster.get(GADGETS, missing)
    with pytest.raises(NotFound):
        await cluster.patch(GADGETS, missing, {"spec": {"size": 2}})
    with pytest.raises(NotFound):
        await cluster.patch_status(GADGETS, missing, {"status": {"phase": "Ready"}})
    with pytest.raises(NotFound):
        await cluster.delete(GADGETS, missing)
    with pytest.raises(NotFound):
        await cluster.delete(GADGETS, missing, DeleteOptions(uid="11111111-2222-3333-4444-555555555555"))


async def test_the_cluster_completes_a_generated_name(cluster: Cluster, namespace: str) -> None:
    body = {"metadata": {"generateName": "event-"}, "spec": {}}
    names = {(await cluster.create(GADGETS, body, namespace=namespace)).metadata.name for _ in range(3)}
    assert len(names) == 3
    assert all(re.fullmatch(r"event-[a-z0-9]{5}", name) for name in names)


async def test_a_given_name_wins_over_a_generated_one(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one", generateName="event-"), namespace=namespace)
    assert made.metadata.name == "one"


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "dot.", "sp ace", "a" * 254])
async def test_a_name_that_is_no_dns_name_is_refused_with_its_path(cluster: Cluster, namespace: str, name: str) -> None:
    for kind, body in ((GADGETS, gadget(name)), (CONFIG_MAPS, config_map(name))):
        with pytest.raises(Invalid) as refused:
            await cluster.create(kind, body, namespace=namespace)
        assert {cause.field for cause in refused.value.causes} == {"metadata.name"}


async def test_an_object_without_a_name_is_refused(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(GADGETS, {"metadata": {}, "spec": {}}, namespace=namespace)
    assert "name or generateName is required" in str(refused.value)


@pytest.mark.parametrize(
    ("labels", "path"),
    [
        ({"bad key": "x"}, "metadata.labels"),
        ({"key": "bad value"}, "metadata.labels"),
        ({"k": "v" * 64}, "metadata.labels"),
    ],
)
async def test_a_label_that_breaks_the_rules_is_refused_with_its_path(
    cluster: Cluster, namespace: str, labels: dict[str, str], path: str
) -> None:
    for kind, body in ((GADGETS, gadget("one", labels=labels)), (CONFIG_MAPS, config_map("one", labels=labels))):
        with pytest.raises(Invalid) as refused:
            await cluster.create(kind, body, namespace=namespace)
        assert {cause.field for cause in refused.value.causes} == {path}


@pytest.mark.every_engine
async def test_an_unknown_field_is_refused_with_its_path(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(BadRequest, match=r'unknown field "spec\.colour"'):
        await cluster.create(GADGETS, gadget("one", spec={"colour": "red"}), namespace=namespace)
    parts = [{"name": "a"}, {"name": "b", "nome": "c"}]
    with pytest.raises(BadRequest, match=r'unknown field "spec\.parts\[1\]\.nome"'):
        await cluster.create(GADGETS, gadget("one", spec={"parts": parts}), namespace=namespace)
    with pytest.raises(BadRequest, match=r'unknown field "spec\.paralelism"'):
        await cluster.create(JOBS, {"metadata": {"name": "one"}, "spec": {"paralelism": 2}}, namespace=namespace)
    with pytest.raises(BadRequest, match='unknown field "dat"'):
        await cluster.create(CONFIG_MAPS, {"metadata": {"name": "one"}, "dat": {}}, namespace=namespace)
    assert (await cluster.list(GADGETS, namespace=namespace)).items == ()


async def test_an_unknown_field_in_a_patch_or_replacement_is_refused(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    for write in (cluster.patch, cluster.replace):
        with pytest.raises((BadRequest, Invalid), match="colour"):
            await write(
                GADGETS,
                key_of(made),
                gadget("one", spec={"colour": "red"}, resourceVersion=made.metadata.resource_version),
            )
    assert await cluster.get(GADGETS, key_of(made)) == made


async def test_a_value_of_the_wrong_type_is_refused(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(GADGETS, gadget("one", spec={"size": "three"}), namespace=namespace)
    assert "spec.size" in {cause.field for cause in refused.value.causes}
    assert "integer" in str(refused.value)
    with pytest.raises(BadRequest, match="data"):
        await cluster.create(CONFIG_MAPS, {"metadata": {"name": "one"}, "data": {"k": 1}}, namespace=namespace)


@pytest.mark.every_engine
async def test_a_patch_merges_and_null_removes(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(
        CONFIG_MAPS, config_map("one", data={"keep": "1", "drop": "2"}, labels={"a": "b"}), namespace=namespace
    )
    patch: JSON = {"data": {"drop": None, "add": "3"}, "metadata": {"labels": {"c": "d"}}}
    patched = await cluster.patch(CONFIG_MAPS, key_of(made), patch)
    assert patched.data == {"keep": "1", "add": "3"}
    assert patched.metadata.labels == {"a": "b", "c": "d"}
    assert patched == await cluster.get(CONFIG_MAPS, key_of(made))


async def test_a_patch_puts_a_list_in_place_of_the_old_one(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(
        GADGETS, gadget("one", spec={"parts": [{"name": "a"}, {"name": "b"}]}), namespace=namespace
    )
    patched = await cluster.patch(GADGETS, key_of(made), {"spec": {"parts": [{"name": "c"}]}})
    assert patched.spec["parts"] == [{"name": "c"}]


@pytest.mark.every_engine
async def test_a_replacement_drops_what_it_does_not_name(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("one", data={"k": "v"}, labels={"a": "b"}), namespace=namespace)
    replaced = await cluster.replace(CONFIG_MAPS, key_of(made), config_map("one", data={"n": "w"}))
    assert replaced.data == {"n": "w"}
    assert replaced.metadata.labels == {}
    assert replaced.metadata.uid == made.metadata.uid
    assert replaced.metadata.creation_timestamp == made.metadata.creation_timestamp


async def test_a_replacement_under_another_name_is_refused(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(CONFIG_MAPS, config_map("one"), namespace=namespace)
    with pytest.raises(BadRequest):
        await cluster.replace(CONFIG_MAPS, key_of(made), config_map("two"))


async def test_what_the_cluster_sets_cannot_be_changed(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    ignored = {"creationTimestamp": "2001-01-01T00:00:00Z", "generation": 40}
    assert await cluster.patch(GADGETS, key_of(made), {"metadata": ignored}) == made
    with pytest.raises(Invalid) as refused:
        await cluster.patch(GADGETS, key_of(made), {"metadata": {"deletionTimestamp": "2001-01-01T00:00:00Z"}})
    assert {cause.field for cause in refused.value.causes} == {"metadata.deletionTimestamp"}
    assert await cluster.get(GADGETS, key_of(made)) == made


async def test_a_deleted_object_is_gone(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    await cluster.delete(GADGETS, key_of(made))
    with pytest.raises(NotFound):
        await cluster.get(GADGETS, key_of(made))
    assert (await cluster.list(GADGETS, namespace=namespace)).items == ()
