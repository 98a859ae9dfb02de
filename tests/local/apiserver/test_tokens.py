"""Tokens that this process gives out and tells apart."""

from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from holdfast.api.meta import Key
from holdfast.cluster.errors import NotFound
from holdfast.cluster.resources import PODS
from holdfast.local.apiserver.http.app import application
from holdfast.local.apiserver.server import EmbeddedCluster, Tokens

from .bodies import pod
from .clock import Clock

ONE, TWO = Key("ml", "one"), Key("ml", "two")


def test_each_token_is_its_own() -> None:
    uids = {ONE: "1", TWO: "2"}
    tokens = Tokens(lambda key: uids[key])
    issued = [tokens.issue(key, uids[key], account, "x", "n1") for key, account in ((ONE, "a"), (TWO, "b"), (ONE, "a"))]
    assert len(set(issued)) == 3
    found = [tokens.review(token, "x") for token in issued]
    assert [(each.pod_name, each.pod_uid) for each in found if each] == [("one", "1"), ("two", "2"), ("one", "1")]
    assert [each.username for each in found if each][:2] == ["system:serviceaccount:ml:a", "system:serviceaccount:ml:b"]


def test_tokens_of_pods_that_are_gone_are_forgotten() -> None:
    uids = {ONE: "1", TWO: "2"}
    tokens = Tokens(lambda key: uids.get(key, ""))
    token = tokens.issue(ONE, "1", "a", "x", "n1")
    uids[ONE] = "another"
    assert tokens.review(token, "x") is None
    tokens.issue(TWO, "2", "a", "x", "n1")
    uids[ONE] = "1"
    assert tokens.review(token, "x") is None


async def test_only_a_pod_that_is_there_gets_a_token(cluster: EmbeddedCluster) -> None:
    made = await cluster.create(PODS, pod(), namespace="default")
    key, uid = made.metadata.key, made.metadata.uid
    assert await cluster.review_token(cluster.issue_token(key, uid=uid, account="a", audience="x"), "x") is not None
    for other, other_uid in ((Key("default", "two"), uid), (key, "another")):
        with pytest.raises(NotFound):
            cluster.issue_token(other, uid=other_uid, account="a", audience="x")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, "spec.token is missing"),
        ({"token": ""}, "spec.token is missing"),
        ({"token": 1, "audiences": ["x"]}, "spec.token is missing"),
        ({"token": "t"}, "exactly one audience"),
        ({"token": "t", "audiences": []}, "exactly one audience"),
        ({"token": "t", "audiences": ["x", "y"]}, "exactly one audience"),
        ({"token": "t", "audiences": [1]}, "exactly one audience"),
        ({"token": "t", "audiences": "x"}, "exactly one audience"),
    ],
)
async def test_a_review_that_asks_nothing_is_refused(
    cluster: EmbeddedCluster, clock: Clock, spec: dict[str, Any], says: str
) -> None:
    async with TestClient(TestServer(application(cluster, token="me", now=clock))) as client:
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        answer = await client.post(path, json={"spec": spec}, headers={"Authorization": "Bearer me"})
        assert answer.status == 400
        assert says in (await answer.json())["message"]
