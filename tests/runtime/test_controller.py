"""Which keys a change concerns."""

from random import Random

import pytest

from holdfast.api.meta import Key, Object, ObjectMeta, OwnerReference
from holdfast.cluster.protocol import Resource
from holdfast.runtime.controller import Watch, owned_by
from holdfast.runtime.informer import Informers
from holdfast.runtime.metrics import Metrics
from tests.runtime.scripted import ScriptedCluster
from tests.runtime.things import HOSTS, PARTS, THINGS, Part, part, running
from tests.runtime.virtual import settled, virtual


def owned(owner: Resource[Object], *, controller: bool = True, api_version: str = "", kind: str = "") -> Part:
    reference = OwnerReference(
        api_version=api_version or owner.api_version,
        kind=kind or owner.kind,
        name="boss",
        uid="u",
        controller=controller,
    )
    return Part(metadata=ObjectMeta(name="p", namespace="ns", owner_references=(reference,)))


THING_OWNER = Resource(group="tests.holdfast.dev", version="v1", kind="Thing", plural="things", model=Object)


@pytest.mark.parametrize(
    ("obj", "keys"),
    [
        (owned(THING_OWNER), [Key("ns", "boss")]),
        (owned(THING_OWNER, api_version="tests.holdfast.dev/v2beta1"), [Key("ns", "boss")]),
        (owned(THING_OWNER, api_version="elsewhere.dev/v1"), []),
        (owned(THING_OWNER, api_version="v1"), []),
        (owned(THING_OWNER, kind="Other"), []),
        (owned(THING_OWNER, controller=False), []),
        (Part(metadata=ObjectMeta(name="p", namespace="ns")), []),
    ],
    ids=["ours", "other version", "other group", "core group", "other kind", "not its controller", "no owner"],
)
def test_an_object_concerns_the_owner_that_controls_it(obj: Part, keys: list[Key]) -> None:
    assert list(owned_by(THINGS)(obj)) == keys


def test_an_owner_of_the_core_group_is_known_by_its_bare_version() -> None:
    obj = owned(Resource(group="", version="v1", kind="Host", plural="hosts", model=Object, namespaced=False))
    assert list(owned_by(HOSTS)(obj)) == [Key("", "boss")]


@virtual
async def test_a_change_of_owner_concerns_the_old_one_and_the_new_one() -> None:
    cluster = ScriptedCluster()
    informers = Informers(cluster, (), metrics=Metrics(), random=Random(1))
    concerned: list[str] = []
    Watch(PARTS, owned_by(THINGS)).attach(informers, lambda key: concerned.append(key.name))
    await informers.sync()
    async with running(informers.run()):
        cluster.put(PARTS, part("p", "first"))
        await settled()
        cluster.put(PARTS, part("p", "second"))
        await settled()
        cluster.drop(PARTS, Key("ns", "p"))
        await settled()
    assert concerned == ["first", "first", "second", "second"]
