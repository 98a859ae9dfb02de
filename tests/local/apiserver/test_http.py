"""The local API as a client without manners sees it: what it answers, and what it refuses."""

import asyncio
import io
import json
import ssl
import stat
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import aiohttp
import pytest
import yaml

from holdfast.api.meta import Key
from holdfast.cluster.errors import NotFound
from holdfast.cluster.login import KUBECONFIG, KubeconfigNotWritable
from holdfast.local.apiserver.http.app import serve
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from tests.contract.kinds import TRAINING_JOBS

from .bodies import pod, training_job
from .clock import Clock

JOBS = "/apis/ml.example.com/v1/namespaces/default/trainingjobs"
PODS = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
WITHIN_S = 120.0


class Answer(NamedTuple):
    code: int
    body: Any


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str, token: str) -> None:
        self.session = session
        self.url = url
        self.token = token

    async def ask(self, method: str, path: str, body: object = None, *, text: str = "", **headers: str) -> Answer:
        kind = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = None if body is None and not text else io.BytesIO((text or json.dumps(body)).encode())
        async with self.session.request(method, self.url + path, data=data, headers={**kind, **named}) as response:
            content = await response.read()
        is_json = response.content_type == "application/json"
        return Answer(response.status, json.loads(content) if is_json else content.decode())

    async def lines(self, path: str, count: int, **headers: str) -> list[Any]:
        """The first lines of an answer that goes on."""
        login = {"Authorization": f"Bearer {self.token}"}
        async with (
            asyncio.timeout(WITHIN_S),
            self.session.get(self.url + path, headers={**login, **headers}) as response,
        ):
            assert response.status == 200
            return [json.loads(await response.content.readline()) for _ in range(count)]


def content(folder: Path) -> list[Path]:
    return [*folder.iterdir()]


def client_of(session_of: Mapping[str, Any], session: aiohttp.ClientSession) -> Client:
    return Client(session, session_of["clusters"][0]["cluster"]["server"], session_of["users"][0]["user"]["token"])


@pytest.fixture
async def cluster(clock: Clock) -> AsyncIterator[EmbeddedCluster]:
    async def said(key: Key, container: str, tail: int | None, limit: int | None) -> bytes:
        return f"{key} {container} {tail} {limit}\n".encode()

    async def follow(key: Key, container: str, tail: int | None) -> AsyncIterator[bytes]:
        if key.name == "mute":
            raise NotFound("it has not started")
        yield b"one\n"
        if key.name == "broken":
            raise NotFound("its log has been taken away")
        yield b"two\n"

    cluster = await open_cluster(None, now=clock, rng=Random(7), pod_logs=said, follow_logs=follow, bookmark_s=0.05)
    yield cluster
    await cluster.close()


@pytest.fixture
async def client(cluster: EmbeddedCluster, tmp_path: Path, clock: Clock) -> AsyncIterator[Client]:
    async with serve(cluster, tmp_path, now=clock) as kubeconfig:
        login = yaml.safe_load(kubeconfig.read_text())
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
            yield client_of(login, session)


async def test_the_kubeconfig_is_its_owner_s_alone_and_goes_with_the_server(
    cluster: EmbeddedCluster, tmp_path: Path, clock: Clock
) -> None:
    async with serve(cluster, tmp_path, now=clock) as kubeconfig:
        assert kubeconfig == tmp_path / KUBECONFIG
        assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600
        first = yaml.safe_load(kubeconfig.read_text())
        assert first["clusters"][0]["cluster"]["server"].startswith("https://127.0.0.1:")
        assert len(first["users"][0]["user"]["token"]) >= 32
    assert content(tmp_path) == []
    async with serve(cluster, tmp_path, now=clock) as kubeconfig:
        assert yaml.safe_load(kubeconfig.read_text())["users"] != first["users"]


async def test_a_kubeconfig_that_somebody_else_has_put_there_is_left_alone(
    cluster: EmbeddedCluster, tmp_path: Path, clock: Clock
) -> None:
    async with serve(cluster, tmp_path, now=clock) as kubeconfig:
        kubeconfig.write_text("another's")
    assert kubeconfig.read_text() == "another's"


async def test_a_folder_that_is_not_there_is_named(cluster: EmbeddedCluster, tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(KubeconfigNotWritable, match=r"nowhere/kubeconfig: No such file"):
        async with serve(cluster, tmp_path / "nowhere", now=clock):
            pass


@pytest.mark.parametrize("login", ["", "Bearer ", "Bearer wrong", "Basic x", "Bearer wrong\xff"])
async def test_a_client_without_the_token_gets_nothing(client: Client, login: str) -> None:
    for path in ("/version", "/api/v1/pods", "/apis", "/openapi/v3", "/nowhere"):
        code, body = await client.ask("GET", path, Authorization=login)
        assert (code, body["kind"], body["reason"]) == (401, "Status", "Unauthorized")


@pytest.mark.parametrize(
    ("method", "path", "code", "reason"),
    [
        ("GET", "/nowhere", 404, "NotFound"),
        ("GET", "/api/v1/zebras", 404, "NotFound"),
        ("GET", "/apis/ml.example.com/v7", 404, "NotFound"),
        ("GET", "/apis/ml.example.com/v7/trainingjobs", 404, "NotFound"),
        ("GET", f"{JOBS}/none", 404, "NotFound"),
        ("GET", "/apis/ml.example.com/v1/trainingjobs/mnist", 404, "NotFound"),
        ("GET", "/api/v1/namespaces/default/nodes", 404, "NotFound"),
        ("GET", "/api/v1/namespaces/default/configmaps/one/status", 404, "NotFound"),
        ("GET", f"{PODS}/one/scale", 404, "NotFound"),
        ("GET", "/openapi/v3/apis/none/v1", 404, "NotFound"),
        ("DELETE", JOBS, 405, "MethodNotAllowed"),
        ("GET", f"{JOBS}?watch=1&resourceVersion=soon", 400, "BadRequest"),
        ("GET", f"{JOBS}?watch=1&timeoutSeconds=soon", 400, "BadRequest"),
        ("GET", f"{JOBS}?labelSelector=%21%21", 400, "BadRequest"),
        ("DELETE", f"{JOBS}/none?propagationPolicy=Sideways", 404, "NotFound"),
    ],
)
async def test_what_is_not_served_is_refused_with_a_status(
    client: Client, method: str, path: str, code: int, reason: str
) -> None:
    answer = await client.ask(method, path)
    assert (answer.code, answer.body["kind"], answer.body["reason"]) == (code, "Status", reason)
    assert answer.body["code"] == code


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("{", 400, "BadRequest"),
        ("[]", 400, "BadRequest"),
        ("\xff", 400, "BadRequest"),
        ("[" * 100_000, 400, "BadRequest"),
        ('"' + "x" * 4_000_000 + '"', 413, "RequestEntityTooLarge"),
    ],
)
async def test_a_body_that_is_no_object_is_refused(client: Client, text: str, code: int, reason: str) -> None:
    answer = await client.ask("POST", JOBS, text=text)
    assert (answer.code, answer.body["reason"]) == (code, reason)


ODD: list[Any] = [7, "x", [], [1], True, None, {"a": [None]}]


@pytest.mark.parametrize("odd", ODD)
async def test_a_part_of_the_wrong_type_is_the_client_s_fault(client: Client, odd: Any) -> None:
    for name in ("metadata", "spec", "status", "kind", "preconditions", "gracePeriodSeconds"):
        await _try_everything(client, name, odd)


async def _try_everything(client: Client, name: str, odd: Any) -> None:
    await client.ask("POST", JOBS, training_job("mnist"))
    body = {**training_job("mnist"), name: odd}
    asked = [
        await client.ask("POST", JOBS, {**training_job("new"), name: odd}),
        await client.ask("PUT", f"{JOBS}/mnist", body),
        await client.ask("PATCH", f"{JOBS}/mnist", {name: odd}, Content_Type=MERGE),
        await client.ask("PUT", f"{JOBS}/mnist/status", body),
        await client.ask("PATCH", f"{JOBS}/mnist/status", {name: odd}, Content_Type=MERGE),
        await client.ask("PUT", f"{JOBS}/mnist/scale", body),
        await client.ask("DELETE", f"{JOBS}/mnist", {name: odd}),
    ]
    assert all(answer.code < 500 for answer in asked), asked


async def test_a_refused_object_is_reported_by_field(client: Client) -> None:
    answer = await client.ask("POST", JOBS, training_job("big", numWorkers=300))
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
    assert [cause["field"] for cause in answer.body["details"]["causes"]] == ["spec.numWorkers"]
    answer = await client.ask("POST", JOBS, training_job("odd", color="red"))
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")


async def test_an_object_is_made_read_changed_and_taken_away(client: Client) -> None:
    made = await client.ask("POST", JOBS, training_job("mnist"))
    assert made.code == 201
    assert (await client.ask("POST", JOBS, training_job("mnist"))).body["reason"] == "AlreadyExists"
    assert (await client.ask("GET", f"{JOBS}/mnist")).body == made.body
    patched = await client.ask("PATCH", f"{JOBS}/mnist", {"spec": {"numWorkers": 3}}, Content_Type=MERGE)
    assert (patched.code, patched.body["spec"]["numWorkers"], patched.body["metadata"]["generation"]) == (200, 3, 2)
    stale = await client.ask("PUT", f"{JOBS}/mnist", made.body)
    assert (stale.code, stale.body["reason"]) == (409, "Conflict")
    fresh = {**patched.body, "spec": {**patched.body["spec"], "numWorkers": 4}}
    assert (await client.ask("PUT", f"{JOBS}/mnist", fresh)).body["spec"]["numWorkers"] == 4
    other = {"preconditions": {"uid": "another"}}
    assert (await client.ask("DELETE", f"{JOBS}/mnist", other)).body["reason"] == "Conflict"
    gone = await client.ask("DELETE", f"{JOBS}/mnist")
    assert (gone.code, gone.body["status"], gone.body["details"]["uid"]) == (
        200,
        "Success",
        made.body["metadata"]["uid"],
    )
    assert (await client.ask("GET", JOBS)).body["items"] == []


async def test_what_is_held_by_a_finalizer_is_answered_as_it_is(client: Client) -> None:
    body = training_job("held")
    body["metadata"]["finalizers"] = ["tests.holdfast.dev/hold"]
    await client.ask("POST", JOBS, body)
    answer = await client.ask("DELETE", f"{JOBS}/held", {"propagationPolicy": "Background"})
    assert answer.body["metadata"]["deletionTimestamp"]


@pytest.mark.parametrize(
    "options",
    [
        {"propagationPolicy": "Sideways"},
        {"gracePeriodSeconds": "soon"},
        {"gracePeriodSeconds": -1},
        {"gracePeriodSeconds": "9" * 5000},
    ],
)
async def test_options_of_a_delete_that_make_no_sense_delete_nothing(client: Client, options: object) -> None:
    await client.ask("POST", JOBS, training_job("mnist"))
    assert (await client.ask("DELETE", f"{JOBS}/mnist", options)).code == 400
    assert (await client.ask("GET", f"{JOBS}/mnist")).code == 200


async def test_a_dry_run_is_refused_and_changes_nothing(client: Client) -> None:
    assert (await client.ask("POST", f"{JOBS}?dryRun=All", training_job("mnist"))).code == 400
    assert (await client.ask("GET", JOBS)).body["items"] == []


@pytest.mark.parametrize(
    ("kind", "patch", "code"),
    [
        ("application/json-patch+json", [], 415),
        ("application/apply-patch+yaml", {}, 415),
        ("application/strategic-merge-patch+json", {"data": {"b": "2"}}, 200),
        ("application/strategic-merge-patch+json", {"metadata": {"finalizers": ["a/b"]}}, 415),
        ("application/strategic-merge-patch+json", {"data": {"$patch": "replace"}}, 415),
        (MERGE, [], 400),
    ],
)
async def test_only_patches_that_are_understood_are_taken(client: Client, kind: str, patch: object, code: int) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    await client.ask("POST", path, {"metadata": {"name": "one"}, "data": {"a": "1"}})
    answer = await client.ask("PATCH", f"{path}/one", patch, Content_Type=kind)
    assert answer.code == code
    data = (await client.ask("GET", f"{path}/one")).body["data"]
    assert data == ({"a": "1", "b": "2"} if code == 200 else {"a": "1"})


async def test_status_is_written_apart_from_the_rest(client: Client) -> None:
    made = (await client.ask("POST", JOBS, training_job("mnist"))).body
    body = {"status": {"state": "Running", "message": "m"}, "spec": {"numWorkers": 9}}
    patched = await client.ask("PATCH", f"{JOBS}/mnist/status", body, Content_Type=MERGE)
    assert (patched.body["status"], patched.body["spec"]) == (body["status"], made["spec"])
    replaced = await client.ask("PUT", f"{JOBS}/mnist/status", {**patched.body, "status": {"state": "Failed"}})
    assert replaced.body["status"] == {"state": "Failed"}
    stale = await client.ask("PUT", f"{JOBS}/mnist/status", {**patched.body, "status": {"state": "Running"}})
    assert (stale.code, stale.body["reason"]) == (409, "Conflict")
    assert (await client.ask("GET", f"{JOBS}/mnist/status")).body == replaced.body
    namespace = await client.ask("GET", "/api/v1/namespaces/default/status")
    assert namespace.body["kind"] == "Namespace"


async def test_a_job_is_scaled_by_its_scale(client: Client) -> None:
    await client.ask("POST", JOBS, training_job("mnist"))
    scale = (await client.ask("GET", f"{JOBS}/mnist/scale")).body
    assert (scale["kind"], scale["spec"], scale["status"]["replicas"]) == ("Scale", {"replicas": 2}, 0)
    patch = {"spec": {"replicas": 5}}
    assert (await client.ask("PATCH", f"{JOBS}/mnist/scale", patch, Content_Type=MERGE)).body["spec"] == {"replicas": 5}
    assert (await client.ask("PUT", f"{JOBS}/mnist/scale", scale)).body["reason"] == "Conflict"
    assert (await client.ask("PUT", f"{JOBS}/mnist/scale", {"spec": {"replicas": 3}})).code == 200
    assert (await client.ask("GET", f"{JOBS}/mnist")).body["spec"]["numWorkers"] == 3
    for wrong in ({}, {"spec": {"replicas": "x"}}, {"spec": {"replicas": True}}):
        assert (await client.ask("PUT", f"{JOBS}/mnist/scale", wrong)).code == 400
    assert (await client.ask("PUT", f"{JOBS}/mnist/scale", {"spec": {"replicas": 0}})).code == 422


async def test_a_list_is_chosen_by_labels_and_fields(client: Client) -> None:
    for name in ("one", "two"):
        await client.ask("POST", PODS, pod(name, labels={"is": name}))
    listing = (await client.ask("GET", f"{PODS}?labelSelector=is%3Done&limit=1")).body
    assert (listing["kind"], [item["metadata"]["name"] for item in listing["items"]]) == ("PodList", ["one"])
    named = (await client.ask("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dtwo")).body
    assert [item["metadata"]["name"] for item in named["items"]] == ["two"]


async def test_a_table_has_the_columns_of_the_definition(client: Client, clock: Clock) -> None:
    await client.ask("POST", JOBS, training_job("mnist"))
    body = {"status": {"state": "Running", "currentEpoch": 4}}
    await client.ask("PATCH", f"{JOBS}/mnist/status", body, Content_Type=MERGE)
    clock.advance(90)
    table = (await client.ask("GET", JOBS, Accept=TABLE)).body
    names = [column["name"] for column in table["columnDefinitions"] if not column["priority"]]
    assert (table["kind"], names) == ("Table", ["NAME", "STATE", "PROGRESS", "EPOCH", "AGE"])
    (row,) = table["rows"]
    assert row["cells"][:5] == ["mnist", "Running", None, 4, "90s"]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    whole = (await client.ask("GET", f"{JOBS}/mnist?includeObject=Object", Accept=TABLE)).body["rows"][0]["object"]
    assert whole["kind"] == "TrainingJob"
    bare = (await client.ask("GET", f"{JOBS}/mnist?includeObject=None", Accept=TABLE)).body["rows"][0]["object"]
    assert bare is None


async def test_a_watch_begins_with_what_is_there_and_goes_on(client: Client, cluster: EmbeddedCluster) -> None:
    await client.ask("POST", JOBS, training_job("mnist"))
    login = {"Authorization": f"Bearer {client.token}"}
    async with asyncio.timeout(WITHIN_S), client.session.get(f"{client.url}{JOBS}?watch=true", headers=login) as answer:
        added = json.loads(await answer.content.readline())
        await cluster.patch(TRAINING_JOBS, Key("default", "mnist"), {"metadata": {"labels": {"a": "b"}}})
        modified = json.loads(await answer.content.readline())
    assert [added["type"], modified["type"]] == ["ADDED", "MODIFIED"]
    assert modified["object"]["metadata"]["labels"] == {"a": "b"}


async def test_a_streamed_list_ends_with_its_bookmark(client: Client) -> None:
    await client.ask("POST", JOBS, training_job("mnist"))
    query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    added, end = await client.lines(f"{JOBS}?{query}", 2)
    assert (added["type"], added["object"]["metadata"]["name"]) == ("ADDED", "mnist")
    assert end["type"] == "BOOKMARK"
    assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_bookmarks_are_sent_to_watches_that_ask_for_them(client: Client) -> None:
    version = (await client.ask("GET", JOBS)).body["metadata"]["resourceVersion"]
    (line,) = await client.lines(f"{JOBS}?watch=1&resourceVersion={version}&allowWatchBookmarks=true", 1)
    assert (line["type"], line["object"]["kind"]) == ("BOOKMARK", "TrainingJob")
    assert line["object"]["metadata"] == {"resourceVersion": version}


async def test_a_watch_from_a_version_that_is_no_longer_stored_is_refused_as_expired(
    client: Client, cluster: EmbeddedCluster
) -> None:
    version = (await client.ask("GET", JOBS)).body["metadata"]["resourceVersion"]
    await client.ask("POST", JOBS, training_job("mnist"))
    cluster.compact(TRAINING_JOBS)
    (line,) = await client.lines(f"{JOBS}?watch=1&resourceVersion={version}", 1)
    assert (line["type"], line["object"]["code"], line["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_a_watch_ends_when_its_time_is_up(client: Client) -> None:
    await client.ask("POST", JOBS, training_job("mnist"))
    answer = await client.ask("GET", f"{JOBS}?watch=1&timeoutSeconds=1", Accept=TABLE)
    assert answer.code == 200
    assert answer.body["object"]["rows"][0]["cells"][0] == "mnist"


async def test_an_open_watch_does_not_hold_up_the_end_of_the_server(
    cluster: EmbeddedCluster, tmp_path: Path, clock: Clock
) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        async with asyncio.timeout(WITHIN_S), serve(cluster, tmp_path, now=clock) as kubeconfig:
            client = client_of(yaml.safe_load(kubeconfig.read_text()), session)
            headers = {"Authorization": f"Bearer {client.token}"}
            response = await session.get(f"{client.url}{JOBS}?watch=1", headers=headers)
        response.close()


async def test_logs_are_read_and_followed(client: Client) -> None:
    for name in ("one", "mute"):
        await client.ask("POST", PODS, pod(name))
    read = await client.ask("GET", f"{PODS}/one/log?container=main&tailLines=3&limitBytes=9")
    assert read == (200, "default/one main 3 9\n")
    assert await client.ask("GET", f"{PODS}/one/log?follow=true") == (200, "one\ntwo\n")
    mute = await client.ask("GET", f"{PODS}/mute/log?follow=true")
    assert (mute.code, mute.body["message"]) == (404, "it has not started")
    assert (await client.ask("GET", f"{PODS}/none/log")).code == 404
    for number in ("some", "9" * 5000):
        assert (await client.ask("GET", f"{PODS}/one/log?tailLines={number}")).code == 400


async def test_an_answer_that_can_t_be_finished_is_broken_off(client: Client) -> None:
    await client.ask("POST", PODS, pod("broken"))
    with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError)):
        await client.ask("GET", f"{PODS}/broken/log?follow=true")
    assert (await client.ask("GET", f"{PODS}/broken")).code == 200


async def test_what_is_served_can_be_discovered(client: Client) -> None:
    assert (await client.ask("GET", "/version")).body["major"] == "1"
    assert (await client.ask("GET", "/api")).body["versions"] == ["v1"]
    groups = {group["name"]: group for group in (await client.ask("GET", "/apis")).body["groups"]}
    versions = [version["version"] for version in groups["migration.dcnlab.com"]["versions"]]
    assert versions == ["v1", "v1alpha1"]
    entries = (await client.ask("GET", "/apis/ml.example.com/v1")).body["resources"]
    assert [entry["name"] for entry in entries] == ["trainingjobs", "trainingjobs/status", "trainingjobs/scale"]
    assert (entries[0]["shortNames"], entries[0]["categories"]) == (["tj"], ["holdfast"])
    core = [entry["name"] for entry in (await client.ask("GET", "/api/v1")).body["resources"]]
    assert {"pods", "pods/log", "pods/status", "events", "configmaps"} < set(core)
    assert "configmaps/status" not in core


async def test_a_kind_s_schema_can_be_read(client: Client) -> None:
    paths = (await client.ask("GET", "/openapi/v3")).body["paths"]
    document = (await client.ask("GET", paths["apis/ml.example.com/v1"]["serverRelativeURL"])).body
    (schema,) = document["components"]["schemas"].values()
    assert schema["x-kubernetes-group-version-kind"][0]["kind"] == "TrainingJob"
    assert schema["properties"]["spec"]["properties"]["numWorkers"]["maximum"] == 100
    assert "api/v1" in paths
