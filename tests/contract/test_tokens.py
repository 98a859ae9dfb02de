"""Whose token is that: proof that a pod carries of itself, for one audience, as long as it is there."""

from datetime import UTC, datetime
from functools import partial

import pytest

from holdfast.cluster.errors import ClusterError
from holdfast.cluster.protocol import DeleteOptions
from holdfast.cluster.resources import PODS
from tests.control_plane.waiting import eventually

from .engine import Engine
from .pods import pod
from .waiting import gone

AUDIENCE = "holdfast.dev/reports"


@pytest.mark.every_engine
async def test_a_token_names_its_pod_and_its_account(engine: Engine, namespace: str) -> None:
    made = await engine.cluster.create(PODS, pod("one", "none"), namespace=namespace)
    found = await engine.cluster.review_token(await engine.token(made, AUDIENCE), AUDIENCE)
    assert found is not None
    assert found.username == f"system:serviceaccount:{namespace}:default"
    assert (found.namespace, found.service_account) == (namespace, "default")
    assert (found.pod_name, found.pod_uid) == ("one", made.metadata.uid)
    assert found.expires_at is None or found.expires_at > datetime.now(UTC)


async def test_a_token_names_the_node_of_its_pod(engine: Engine, namespace: str) -> None:
    unbound = await engine.cluster.create(PODS, pod("one", "none"), namespace=namespace)
    bound = await engine.cluster.create(PODS, pod("two", "none", nodeName="n1"), namespace=namespace)
    nodes = [
        found.node_name if (found := await engine.cluster.review_token(token, AUDIENCE)) is not None else None
        for token in (await engine.token(unbound, AUDIENCE), await engine.token(bound, AUDIENCE))
    ]
    assert nodes == ["", "n1"]


@pytest.mark.every_engine
async def test_a_token_for_another_audience_is_none(engine: Engine, namespace: str) -> None:
    made = await engine.cluster.create(PODS, pod("one", "none"), namespace=namespace)
    token = await engine.token(made, "somebody.else")
    assert await engine.cluster.review_token(token, AUDIENCE) is None
    assert await engine.cluster.review_token(token, "somebody.else") is not None


@pytest.mark.parametrize("token", ["x", "a.b.c", "é", "a" * 4000], ids=["short", "dotted", "not-ascii", "long"])
async def test_a_token_that_the_server_has_not_issued_is_none(engine: Engine, token: str) -> None:
    assert await engine.cluster.review_token(token, AUDIENCE) is None


async def test_a_token_ends_with_its_pod(engine: Engine, namespace: str) -> None:
    made = await engine.cluster.create(PODS, pod("one", "none"), namespace=namespace)
    token = await engine.token(made, AUDIENCE)
    assert await engine.cluster.review_token(token, AUDIENCE) is not None
    await engine.cluster.delete(PODS, made.metadata.key, DeleteOptions(grace_period_s=0))
    await gone(engine.cluster, PODS, made.metadata.key)
    again = await engine.cluster.create(PODS, pod("one", "none"), namespace=namespace)
    assert again.metadata.uid != made.metadata.uid
    # The API server remembers for ten seconds what it has found.
    reviewed = partial(engine.cluster.review_token, token, AUDIENCE)
    await eventually(reviewed, lambda found: found is None, what="the token of the past is refused")


async def test_no_token_is_given_for_a_pod_of_the_past(engine: Engine, namespace: str) -> None:
    made = await engine.cluster.create(PODS, pod("one", "none"), namespace=namespace)
    await engine.cluster.delete(PODS, made.metadata.key, DeleteOptions(grace_period_s=0))
    await gone(engine.cluster, PODS, made.metadata.key)
    await engine.cluster.create(PODS, pod("one", "none"), namespace=namespace)
    with pytest.raises(ClusterError):
        await engine.token(made, AUDIENCE)
