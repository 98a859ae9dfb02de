"""Objects read whole."""

from collections.abc import AsyncIterator
from random import Random

import msgspec
import pytest

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.protocol import Resource
from holdfast.cluster.resources import RawObject, decoder_for
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from tests.local.apiserver.clock import Clock

TEXT = b'{"kind":"Pod","metadata":{"name":"a","managedFields":[{"manager":"x"}]},"spec":{"odd":1},"more":[null]}'


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    cluster = await open_cluster(None, now=Clock(), rng=Random(7))
    yield cluster
    await cluster.close()


def backups(version: str) -> Resource[RawObject]:
    return Resource(
        group="migration.dcnlab.com",
        version=version,
        kind="CheckpointBackup",
        plural="checkpointbackups",
        model=RawObject,
    )


def test_nothing_of_the_document_is_lost() -> None:
    whole = decoder_for(RawObject)(TEXT)
    assert whole.metadata.name == "a"
    assert whole.document == msgspec.json.decode(TEXT)
    assert decoder_for(Pod)(TEXT).metadata == whole.metadata


@pytest.mark.parametrize("text", [b"[]", b"{}", b"{", b'{"metadata":{"name":7}}'])
def test_what_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decoder_for(RawObject)(text)


async def test_an_object_is_whole_in_every_version(cluster: EmbeddedCluster) -> None:
    registry = {"url": "https://registry.invalid", "repository": "r"}
    spec = {"schedule": "immediately", "podRef": {"name": "p", "namespace": "default"}, "registry": registry}
    await cluster.create(backups("v1"), {"metadata": {"name": "a"}, "spec": spec}, namespace="default")
    old = await cluster.get(backups("v1alpha1"), Key("default", "a"))
    new = await cluster.get(backups("v1"), Key("default", "a"))
    assert old.document["apiVersion"] == "migration.dcnlab.com/v1alpha1"
    assert {**old.document, "apiVersion": "migration.dcnlab.com/v1"} == new.document
