"""Ordinary requests to a server that misbehaves."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.api.meta import Key
from holdfast.cluster.errors import (
    ClusterError,
    Conflict,
    NotFound,
    NotLeading,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Undecodable,
    Unreachable,
)
from holdfast.cluster.kubernetes.client import KubernetesCluster
from holdfast.cluster.kubernetes.retries import RetryLimits
from holdfast.cluster.kubernetes.transport import Timeouts
from holdfast.cluster.protocol import DeleteOptions, Propagation

from .conftest import QUICK, client, config_for
from .faulty import FaultyServer, answer, cut, raw, silence, status, stream
from .kinds import CONFIG_MAPS, JOBS, config_map

X = Key("ml", "x")
FOUND = answer(200, config_map("x", 7, colour="red"))
MADE = answer(201, config_map("x", 7))


@pytest.fixture
async def server() -> AsyncIterator[FaultyServer]:
    server = FaultyServer()
    async with server.running():
        yield server


@pytest.fixture
async def cluster(server: FaultyServer, tmp_path: Path) -> AsyncIterator[KubernetesCluster]:
    async with client(config_for(tmp_path, server.url, {"token": "s3cret"})) as cluster:
        yield cluster


async def write(cluster: KubernetesCluster, verb: str) -> None:
    """One write of each kind."""
    match verb:
        case "create":
            await cluster.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace="ml")
        case "replace":
            await cluster.replace(CONFIG_MAPS, X, {"metadata": {"name": "x"}})
        case "patch":
            await cluster.patch(CONFIG_MAPS, X, {"data": {}})
        case "patch_status":
            await cluster.patch_status(CONFIG_MAPS, X, {"status": {}})
        case "delete":
            await cluster.delete(CONFIG_MAPS, X)


WRITES = ("create", "replace", "patch", "patch_status", "delete")


class TestWhatIsSent:
    async def test_a_read_has_the_user_agent_and_the_accepted_types(
        self, server: FaultyServer, cluster: KubernetesCluster
    ) -> None:
        server.then(FOUND)
        found = await cluster.get(CONFIG_MAPS, X)
        assert (found.metadata.key, found.metadata.resource_version, found.data) == (X, "7", {"colour": "red"})
        [request] = server.requests
        assert (request.method, request.target) == ("GET", "/api/v1/namespaces/ml/configmaps/x")
        assert request.header("User-Agent") == f"holdfast/{__version__}"
        assert request.header("Accept") == "application/json"
        assert request.header("Authorization") == "Bearer s3cret"

    async def test_a_write_says_what_it_holds_and_is_strict(
        self, server: FaultyServer, cluster: KubernetesCluster
    ) -> None:
        server.then(MADE, FOUND)
        await cluster.create(CONFIG_MAPS, {"metadata": {"name": "x"}, "data": {"k": "ü"}}, namespace="ml")
        await cluster.patch(CONFIG_MAPS, X, {"data": {"k": None}})
        created, patched = server.requests
        assert created.query == patched.query == {"fieldManager": "holdfast", "fieldValidation": "Strict"}
        assert created.header("Content-Type") == "application/json"
        assert patched.header("Content-Type") == "application/merge-patch+json"
        assert created.body.decode() == (
            '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"k":"ü"}}'
        )
        assert patched.body == b'{"data":{"k":null}}'

    async def test_connections_are_used_again(self, server: FaultyServer, cluster: KubernetesCluster) -> None:
        server.then(*[FOUND] * 5)
        for _ in range(5):
            await cluster.get(CONFIG_MAPS, X)
        assert server.connections == 1

    async def test_a_crowd_of_requests_does_not_become_a_crowd_of_connections(
        self, server: FaultyServer, cluster: KubernetesCluster
    ) -> None:
        server.then(*[FOUND] * 300)
        await asyncio.gather(*(cluster.get(CONFIG_MAPS, X) for _ in range(300)))
        assert len(server.requests) == 300
        assert server.connections <= 100

    async def test_selectors_arrive_as_they_were_written(
        self, server: FaultyServer, cluster: KubernetesCluster
    ) -> None:
        server.then(answer(422), answer(200, {"metadata": {"resourceVersion": "1"}, "items": None}))
        await cluster.list(CONFIG_MAPS, namespace="ml", labels="a in (b, c),d!=e+f", fields="metadata.name=x&y")
        assert server.requests[-1].query == {
            "labelSelector": "a in (b, c),d!=e+f",
            "fieldSelector": "metadata.name=x&y",
            "limit": "500",
        }

    async def test_impersonation_names_every_group(self, server: FaultyServer, tmp_path: Path) -> None:
        server.then(FOUND)
        async with client(config_for(tmp_path, server.url, {"as": "jane", "as-groups": ["a", "b"]})) as cluster:
            await cluster.get(CONFIG_MAPS, X)
        [request] = server.requests
        assert (request.header("Impersonate-User"), request.header("Impersonate-Group")) == ("jane", "a, b")

    async def test_a_server_behind_a_path_is_asked_there(self, server: FaultyServer, tmp_path: Path) -> None:
        server.then(FOUND)
        async with client(config_for(tmp_path, f"{server.url}/k8s/c1/")) as cluster:
            await cluster.get(CONFIG_MAPS, X)
        assert server.requests[0].target == "/k8s/c1/api/v1/namespaces/ml/configmaps/x"

    async def test_a_log_is_bytes(self, server: FaultyServer, cluster: KubernetesCluster) -> None:
        server.then(answer(200, b"\xff\x00 not text\n"))
        assert await cluster.pod_log(X, container="c", tail_lines=5, limit_bytes=9) == b"\xff\x00 not text\n"
        assert server.requests[0].target == "/api/v1/namespaces/ml/pods/x/log?container=c&tailLines=5&limitBytes=9"

    async def test_a_delete_says_how(self, server: FaultyServer, cluster: KubernetesCluster) -> None:
        server.then(answer(200, status(200, "")))
        await cluster.delete(JOBS, X, DeleteOptions(uid="u", propagation=Propagation.FOREGROUND))
        [request] = server.requests
        assert request.method == "DELETE"
        assert b'"propagationPolicy":"Foreground"' in request.body
        assert b'"preconditions":{"uid":"u"}' in request.body


class TestWaiting:
    @pytest.mark.parametrize("verb", WRITES)
    @pytest.mark.parametrize("code", [429, 503])
    async def test_a_write_that_the_server_did_not_take_is_made_again(
        self, server: FaultyServer, cluster: KubernetesCluster, verb: str, code: int
    ) -> None:
        server.then(answer(code, Retry_After="0"), answer(code, Retry_After="0"), FOUND)
        await write(cluster, verb)
        assert len(server.requests) == 3
        assert len({(request.method, request.target, request.body) for request in server.requests}) == 1

    @pytest.mark.parametrize("code", [500, 502, 503, 504])
    async def test_a_write_that_the_server_may_have_made_is_not_made_again(
        self, server: FaultyServer, cluster: KubernetesCluster, code: int
    ) -> None:
        server.then(answer(code))
        with pytest.raises(ServerError) as caught:
            await write(cluster, "create")
        assert caught.value.code == code
        assert len(server.requests) == 1

    async def test_a_request_is_given_up_after_ten_attempts(self, server: FaultyServer, tmp_path: Path) -> None:
        server.then(*[answer(429)] * 10)
        patience = RetryLimits(first_backoff_s=0.001, longest_backoff_s=0.002)
        async with client(config_for(tmp_path, server.url), patience=patience) as cluster:
            with pytest.raises(TooManyRequests, match="get configmaps ml/x: the server answered 429"):
                await cluster.get(CONFIG_MAPS, X)
        assert len(server.requests) == 10

    async def test_an_answer_to_wait_for_an_hour_goes_to_the_caller(
        self, server: FaultyServer, cluster: KubernetesCluster
    ) -> None:
        server.then(answer(429, status(429, "TooManyRequests", "slow down"), Retry_After="3600"))
        with pytest.raises(TooManyRequests, match="slow down") as caught:
            await cluster.get(CONFIG_MAPS, X)
        assert caught.value.retry_after_s == 3600
        assert len(server.requests) == 1

    async def test_a_refusal_is_final(self, server: FaultyServer, cluster: KubernetesCluster) -> None:
        server.then(answer(404, status(404, "NotFound", "not there")), answer(409, status(409, "Conflict", "changed")))
        with pytest.raises(NotFound, match="get configmaps ml/x: not there"):
            await cluster.get(CONFIG_MAPS, X)
        with pytest.raises(Conflict, match="patch configmaps ml/x: changed"):
            await cluster.patch(CONFIG_MAPS, X, {})
        assert len(server.requests) == 2


class TestLostConnections:
    async def test_a_read_that_was_cut_off_is_made_again(
        self, server: FaultyServer, cluster: KubernetesCluster
    ) -> None:
        server.then(cut, cut, FOUND)
        assert (await cluster.get(CONFIG_MAPS, X)).metadata.name == "x"

    @pytest.mark.parametrize("verb", WRITES)
    @pytest.mark.parametrize("reused", [False, True])
    async def test_a_write_that_was_cut_off_is_not_made_again(
        self, server: FaultyServer, cluster: KubernetesCluster, verb: str, reused: bool
    ) -> None:
        """Also over a connection that had been used before, where aiohttp itself would repeat PUT and DELETE."""
        if reused:
            server.then(FOUND)
            await cluster.get(CONFIG_MAPS, X)
        server.then(cut)
        with pytest.raises(Unreachable):
            await write(cluster, verb)
        assert len([request for request in server.requests if request.method != "GET"]) == 1

    @pytest.mark.parametrize("verb", WRITES)
    async def test_a_write_that_found_no_server_is_made_once_a_server_listens(
        self, server: FaultyServer, tmp_path: Path, unused_tcp_port: int, verb: str
    ) -> None:
        tried = asyncio.Event()
        patience = RetryLimits(connection_attempts=1000, first_backoff_s=0.01, longest_backoff_s=0.01)
        config = config_for(tmp_path, f"http://127.0.0.1:{unused_tcp_port}")
        async with client(config, patience=patience, observe=lambda *_: tried.set()) as cluster:
            writing = asyncio.create_task(write(cluster, verb))
            await tried.wait()
            late = FaultyServer(FOUND)
            async with late.running(port=unused_tcp_port):
                await writing
        assert len(late.requests) == 1

    async def test_an_answer_that_breaks_off_is_no_answer(
        self, server: FaultyServer, cluster: KubernetesCluster
    ) -> None:
        server.then(stream(b'{"metadata":', end=False))
        with pytest.raises(Unreachable, match="broke off in the middle of its answer"):
            await cluster.get(CONFIG_MAPS, X)

    @pytest.mark.parametrize("verb", ["get", "create"])
    async def test_silence_is_given_up_on(self, server: FaultyServer, tmp_path: Path, verb: str) -> None:
        server.then(silence)
        async with client(config_for(tmp_path, server.url), timeouts=Timeouts(request_s=0.1)) as cluster:
            with pytest.raises(Unreachable, match="did not answer in time"):
                await (cluster.get(CONFIG_MAPS, X) if verb == "get" else write(cluster, verb))

    async def test_what_is_not_http_is_no_answer(self, server: FaultyServer, cluster: KubernetesCluster) -> None:
        server.then(*[raw(b"SSH-2.0-OpenSSH_9.7\r\n\r\n")] * QUICK.connection_attempts)
        with pytest.raises(Unreachable):
            await cluster.get(CONFIG_MAPS, X)


class TestAnswers:
    @pytest.mark.parametrize("body", [b"", b"<html>", b'{"metadata": []}', b'{"data": {}}', b'{"metadata":{}}\xff'])
    async def test_an_object_that_does_not_fit_is_named(
        self, server: FaultyServer, cluster: KubernetesCluster, body: bytes
    ) -> None:
        server.then(answer(200, body))
        with pytest.raises(Undecodable, match="get configmaps ml/x: the answer does not fit ConfigMap"):
            await cluster.get(CONFIG_MAPS, X)

    async def test_a_redirect_is_not_followed(self, server: FaultyServer, cluster: KubernetesCluster) -> None:
        server.then(answer(302, Location="/elsewhere"))
        with pytest.raises(ServerError, match="302 Found"):
            await cluster.get(CONFIG_MAPS, X)
        assert len(server.requests) == 1

    async def test_only_the_fields_of_the_model_are_kept(
        self, server: FaultyServer, cluster: KubernetesCluster
    ) -> None:
        server.then(answer(200, {"metadata": {"name": "x", "managedFields": [{}]}, "spec": {"template": {}}}))
        assert (await cluster.get(JOBS, X)).spec.parallelism == 1


class TestCredentials:
    async def test_a_token_that_was_replaced_is_used_after_a_refusal(
        self, server: FaultyServer, tmp_path: Path
    ) -> None:
        token = tmp_path / "token"
        token.write_text("first\n")
        server.then(FOUND, answer(401), FOUND)
        async with client(config_for(tmp_path, server.url, {"tokenFile": str(token)})) as cluster:
            await cluster.get(CONFIG_MAPS, X)
            token.write_text("second-token\n")
            await cluster.get(CONFIG_MAPS, X)
        assert [request.header("Authorization") for request in server.requests] == [
            "Bearer first",
            "Bearer first",
            "Bearer second-token",
        ]

    async def test_a_write_that_was_not_accepted_is_made_with_the_new_token(
        self, server: FaultyServer, cluster: KubernetesCluster
    ) -> None:
        server.then(answer(401), MADE)
        await write(cluster, "create")
        assert len(server.requests) == 2

    async def test_a_second_refusal_is_final(self, server: FaultyServer, cluster: KubernetesCluster) -> None:
        server.then(answer(401), answer(401, status(401, "Unauthorized", "Unauthorized")))
        with pytest.raises(Unauthorized) as caught:
            await cluster.get(CONFIG_MAPS, X)
        line = str(caught.value)
        assert "get configmaps ml/x: the server does not accept who we are" in line
        assert "context 'test'" in line
        assert "s3cret" not in line

    async def test_a_password_is_sent_as_basic(self, server: FaultyServer, tmp_path: Path) -> None:
        server.then(FOUND)
        async with client(config_for(tmp_path, server.url, {"username": "me", "password": "pä:ss"})) as cluster:
            await cluster.get(CONFIG_MAPS, X)
        assert server.requests[0].header("Authorization") == "Basic bWU6cMOkOnNz"

    async def test_a_plugin_is_run_again_after_a_refusal(self, server: FaultyServer, tmp_path: Path) -> None:
        plugin = tmp_path / "plugin"
        plugin.write_text(
            '#!/bin/sh\ncd "$(dirname "$0")" && echo x >> runs\n'
            'echo \'{"apiVersion":"client.authentication.k8s.io/v1","status":{"token":"t\'$(wc -l < runs)\'"}}\'\n'
        )
        plugin.chmod(0o700)
        user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}}
        server.then(FOUND, answer(401), FOUND)
        async with client(config_for(tmp_path, server.url, user)) as cluster:
            await cluster.get(CONFIG_MAPS, X)
            await cluster.get(CONFIG_MAPS, X)
        tokens = [request.header("Authorization") for request in server.requests]
        assert tokens == ["Bearer t1", "Bearer t1", "Bearer t2"]

    @pytest.mark.parametrize("token", ["two words", "line\nbreak", "üml"])
    async def test_a_token_that_no_header_can_hold_is_refused(
        self, server: FaultyServer, tmp_path: Path, token: str
    ) -> None:
        async with client(config_for(tmp_path, server.url, {"token": token})) as cluster:
            with pytest.raises(ClusterError, match="one line of printable ASCII") as caught:
                await cluster.get(CONFIG_MAPS, X)
        assert token not in str(caught.value)


class Gate:
    """Lets `open` writes through, then none."""

    def __init__(self, opens: int = 1000) -> None:
        self.opens = opens
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls > self.opens:
            raise NotLeading("the lease is lost")


class TestGate:
    @pytest.mark.parametrize("verb", WRITES)
    async def test_a_closed_gate_holds_every_write_back(
        self, server: FaultyServer, cluster: KubernetesCluster, verb: str
    ) -> None:
        with pytest.raises(NotLeading):
            await write(cluster.gated(Gate(0)), verb)
        assert server.requests == []

    async def test_reads_pass_a_closed_gate(self, server: FaultyServer, cluster: KubernetesCluster) -> None:
        server.then(FOUND, answer(200, b"log"))
        gated = cluster.gated(Gate(0))
        await gated.get(CONFIG_MAPS, X)
        await gated.pod_log(X)
        assert len(server.requests) == 2

    async def test_the_gate_is_asked_before_every_attempt(
        self, server: FaultyServer, cluster: KubernetesCluster
    ) -> None:
        gate = Gate(2)
        server.then(answer(429, Retry_After="0"), answer(401))
        with pytest.raises(NotLeading):
            await write(cluster.gated(gate), "create")
        assert (gate.calls, len(server.requests)) == (3, 2)

    async def test_other_views_don_t_have_the_gate(self, server: FaultyServer, cluster: KubernetesCluster) -> None:
        gate = Gate(0)
        cluster.gated(gate)
        server.then(MADE)
        await write(cluster, "create")
        assert gate.calls == 0

    async def test_views_share_the_connections(self, server: FaultyServer, cluster: KubernetesCluster) -> None:
        server.then(MADE, MADE)
        await write(cluster, "create")
        await write(cluster.gated(Gate()), "create")
        assert server.connections == 1

    async def test_the_gate_is_asked_when_the_connection_stands(self, tmp_path: Path, unused_tcp_port: int) -> None:
        """A leader that spent its lease on connecting must not write: the gate would have been asked too early."""
        gate = Gate()
        config = config_for(tmp_path, f"http://127.0.0.1:{unused_tcp_port}")
        async with client(config) as cluster:
            with pytest.raises(Unreachable):
                await write(cluster.gated(gate), "create")
        assert gate.calls == 0


async def test_every_attempt_is_observed(server: FaultyServer, tmp_path: Path, unused_tcp_port: int) -> None:
    seen: list[tuple[str, str, int]] = []

    def observe(verb: str, resource: str, code: int, seconds: float) -> None:
        assert seconds >= 0
        seen.append((verb, resource, code))

    server.then(answer(429, Retry_After="0"), FOUND, answer(404), cut)
    async with client(config_for(tmp_path, server.url), observe=observe) as cluster:
        await cluster.get(CONFIG_MAPS, X)
        with pytest.raises(NotFound):
            await cluster.delete(JOBS, X)
        with pytest.raises(Unreachable):
            await cluster.patch_status(JOBS, X, {})
    assert seen == [
        ("get", "configmaps", 429),
        ("get", "configmaps", 200),
        ("delete", "jobs.batch", 404),
        ("patch", "jobs.batch/status", 0),
    ]
