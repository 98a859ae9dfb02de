"""Who gets the credential of a run, and what each of the others is told."""

import base64
import json
from collections.abc import AsyncIterator, Mapping
from random import Random
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from holdfast.api import credentials, reports
from holdfast.api.core.objects import Secret
from holdfast.api.meta import Key, ObjectMeta
from holdfast.checkpointbackup import credentials as handling
from holdfast.checkpointbackup.credentials import CredentialHandler
from holdfast.cluster.errors import Forbidden, Unreachable
from holdfast.cluster.protocol import Resource, T
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, NAMESPACES, PODS, SECRETS
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.runtime.http import serve_app
from holdfast.runtime.process import utc_now
from tests.contract.pods import pod_spec
from tests.leaks import PASSWORD

LOCAL = "127.0.0.1"
ACCOUNT = "system:serviceaccount:agents:holdfast-node"
LOGIN = {"username": "ada", "password": PASSWORD}


class CredentialLab:
    """A handler that serves on this machine, and the cluster that it asks."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self.is_leading = True
        self.url = ""
        self.handler = CredentialHandler(
            cluster,
            now=utc_now,
            leading=lambda: self.is_leading,
            node_account=ACCOUNT,
            operator_account="agents:holdfast-operator",
            plain_http=("plain.example:5000",),
        )

    async def token(
        self,
        *,
        namespace: str = "agents",
        node: str = "n1",
        account: str = "holdfast-node",
        audience: str = credentials.NODE_AUDIENCE,
    ) -> str:
        """The token of a new pod; by default that of n1's agent."""
        spec = {**pod_spec("none"), **({"nodeName": node} if node else {})}
        body = {"metadata": {"generateName": "pod-"}, "spec": spec}
        pod = await self.cluster.create(PODS, body, namespace=namespace)
        self.pod_uid = pod.metadata.uid
        return self.cluster.issue_token(pod.metadata.key, uid=pod.metadata.uid, account=account, audience=audience)

    async def sidecar(self, namespace: str = "ml") -> str:
        return await self.token(namespace=namespace, account="default", audience=reports.AUDIENCE)

    async def backup(self, *, registry: Mapping[str, Any] | None = None, **status: Any) -> dict[str, Any]:
        """A backup with a run on n1 that is under way; the request for its credential."""
        where = {"url": "r.example", "repository": "team/app", **(registry or {})}
        body = {
            "metadata": {"generateName": "save-"},
            "spec": {"schedule": "immediately", "podRef": {"name": "bert"}, "registry": where},
        }
        made = await self.cluster.create(CHECKPOINT_BACKUPS, body, namespace="ml")
        running = {"run": 3, "nodeName": "n1", "podUID": "u1", "mode": "container", "phase": "ImagePushing"}
        await self.cluster.patch_status(CHECKPOINT_BACKUPS, made.metadata.key, {"status": {**running, **status}})
        return {"namespace": "ml", "backup": made.metadata.name, "uid": made.metadata.uid, "run": 3}

    async def secret(self, name: str, data: Mapping[str, str], *, namespace: str = "ml", allows: str = "") -> None:
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        annotations = {credentials.ALLOW_NAMESPACES: allows} if allows else {}
        body = {"metadata": {"name": name, "annotations": annotations}, "data": encoded}
        await self.cluster.create(SECRETS, body, namespace=namespace)

    async def ask(self, wanted: Mapping[str, Any] | bytes, token: str) -> tuple[int, dict[str, Any]]:
        data = wanted if isinstance(wanted, bytes) else json.dumps(wanted).encode()
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(self.url) as session,
            session.post(credentials.PATH, data=data, headers=headers) as answer,
        ):
            return answer.status, await answer.json()

    async def refusal(self, wanted: Mapping[str, Any], token: str) -> tuple[int, str]:
        status, answer = await self.ask(wanted, token)
        return status, answer["error"]


class TroubledCluster(EmbeddedCluster):
    """One whose answer to the reading of a Secret can be replaced by an error."""

    trouble: Exception | None = None

    async def get(self, resource: Resource[T], key: Key) -> T:
        if resource.plural == "secrets" and self.trouble is not None:
            raise self.trouble
        return await super().get(resource, key)


@pytest.fixture
async def desk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CredentialLab]:
    monkeypatch.setattr("holdfast.local.apiserver.server.EmbeddedCluster", TroubledCluster)
    cluster = await open_cluster(None, now=utc_now, rng=Random(0))
    for namespace in ("ml", "agents", "other"):
        await cluster.create(NAMESPACES, {"metadata": {"name": namespace}})
    desk = CredentialLab(cluster)
    app = aiohttp.web.Application()
    app.router.add_routes(desk.handler.routes())
    try:
        async with serve_app(app, host=LOCAL, port=0, option="") as port:
            desk.url = f"http://{LOCAL}:{port}"
            yield desk
    finally:
        await cluster.close()


def login(name: str, namespace: str = "") -> dict[str, Any]:
    return {"secretRef": {"name": name, **({"namespace": namespace} if namespace else {})}}


async def test_the_agent_of_the_runs_node_gets_the_credential_and_nothing_of_it_is_logged(desk: CredentialLab) -> None:
    await desk.secret("login", {**LOGIN, "ca.crt": "PEM"})
    wanted, token = await desk.backup(registry=login("login")), await desk.token()
    with capture_logs() as logs:
        assert await desk.ask(wanted, token) == (200, {**LOGIN, "authority": "PEM"})
    assert [line["event"] for line in logs] == ["credential given"]
    assert logs[0]["to"] == "the agent of node n1"
    assert PASSWORD not in str(logs)
    assert token not in str(logs)


async def test_the_sidecar_in_the_runs_pod_gets_the_credential(desk: CredentialLab) -> None:
    await desk.secret("login", LOGIN)
    token = await desk.sidecar()
    wanted = await desk.backup(registry=login("login"), mode="application", podUID=desk.pod_uid)
    assert await desk.ask(wanted, token) == (200, LOGIN)


async def test_a_docker_config_is_matched_by_host_and_path(desk: CredentialLab) -> None:
    auths = {"r.example/team": {"username": "ada", "password": "1"}, "r.example": {"username": "eve", "password": "2"}}
    await desk.secret("login", {".dockerconfigjson": json.dumps({"auths": auths})})
    wanted = await desk.backup(registry=login("login"))
    assert await desk.ask(wanted, await desk.token()) == (200, {"username": "ada", "password": "1"})


async def test_without_a_secret_the_registry_is_asked_anonymously(desk: CredentialLab) -> None:
    assert await desk.ask(await desk.backup(), await desk.token()) == (200, {})


async def test_another_nodes_agent_is_refused(desk: CredentialLab) -> None:
    wanted = await desk.backup()
    name = wanted["backup"]
    assert await desk.refusal(wanted, await desk.token(node="n2")) == (
        403,
        (
            f"the agent of node n2 may not have the credential of CheckpointBackup ml/{name}: it is for the agent "
            "of node n1"
        ),
    )


async def test_another_pods_sidecar_is_refused(desk: CredentialLab) -> None:
    wanted = await desk.backup(mode="application", podUID="another")
    status, said = await desk.refusal(wanted, await desk.sidecar())
    assert (status, said.partition(": it is for ")[2]) == (403, "its pod's sidecar")


async def test_a_pod_of_another_namespace_does_not_learn_whether_a_backup_exists(desk: CredentialLab) -> None:
    wanted, token = await desk.backup(mode="application"), await desk.sidecar("other")
    expected = (403, "a pod of other has no part in backups of ml")
    assert await desk.refusal(wanted, token) == expected
    assert await desk.refusal({**wanted, "backup": "none"}, token) == expected


async def test_each_mode_has_its_own_callers(desk: CredentialLab) -> None:
    """The agent of the pod's node has no part in a run of the sidecar, and the other way round."""
    sidecar = await desk.sidecar()
    in_container = await desk.backup(podUID=desk.pod_uid)
    assert (await desk.ask(in_container, sidecar))[0] == 403
    assert (await desk.ask(await desk.backup(mode="application"), await desk.token()))[0] == 403


@pytest.mark.parametrize("phase", ["Completed", "CompletedPodDeleted", "CompletedWithError", "Failed"])
async def test_a_run_that_is_over_has_no_credential(desk: CredentialLab, phase: str) -> None:
    wanted = await desk.backup(phase=phase)
    status, said = await desk.refusal(wanted, await desk.token())
    assert (status, said) == (409, f"run 3 of CheckpointBackup ml/{wanted['backup']} is over: {phase}")


async def test_a_run_that_has_ended_a_moment_ago_has_none_either(desk: CredentialLab) -> None:
    wanted, token = await desk.backup(), await desk.token()
    assert (await desk.ask(wanted, token))[0] == 200
    key = Key("ml", wanted["backup"])
    await desk.cluster.patch_status(CHECKPOINT_BACKUPS, key, {"status": {"phase": "Completed"}})
    assert (await desk.ask(wanted, token))[0] == 409


async def test_only_the_current_run_of_the_very_object_counts(desk: CredentialLab) -> None:
    wanted, token = await desk.backup(), await desk.token()
    key = f"ml/{wanted['backup']}"
    assert await desk.refusal({**wanted, "run": 2}, token) == (
        409,
        f"run 2 of CheckpointBackup {key} is not under way: its run is 3",
    )
    assert await desk.refusal({**wanted, "uid": "older"}, token) == (
        404,
        f"the CheckpointBackup {key} of that uid is gone, and another has its name",
    )
    assert await desk.refusal({**wanted, "backup": "none"}, token) == (404, "there is no CheckpointBackup ml/none")


async def test_a_backup_that_is_being_deleted_has_no_run_under_way(desk: CredentialLab) -> None:
    wanted, token = await desk.backup(), await desk.token()
    key = Key("ml", wanted["backup"])
    await desk.cluster.patch(CHECKPOINT_BACKUPS, key, {"metadata": {"finalizers": ["tests.example/hold"]}})
    await desk.cluster.delete(CHECKPOINT_BACKUPS, key)
    status, said = await desk.refusal(wanted, token)
    assert (status, said) == (409, f"CheckpointBackup {key} is being deleted: it has no run under way")


async def test_other_accounts_and_tokens_of_no_node_are_refused(desk: CredentialLab) -> None:
    wanted = await desk.backup()
    status, said = await desk.refusal(wanted, await desk.token(account="default"))
    assert (status, said.partition(" is not the agents' account ")[0]) == (
        403,
        "system:serviceaccount:agents:default",
    )
    assert "--node-service-account" in said
    assert (await desk.refusal(wanted, await desk.token(node="")))[0] == 403


async def test_a_token_of_another_audience_or_none_is_refused(desk: CredentialLab) -> None:
    wanted = await desk.backup()
    with capture_logs() as logs:
        for token in (await desk.token(audience="somewhere-else"), "guess"):
            assert await desk.refusal(wanted, token) == (
                401,
                f"the token is not valid for the audience {credentials.NODE_AUDIENCE} or {reports.AUDIENCE}",
            )
        assert (await desk.ask({**wanted, "run": 9}, await desk.token()))[0] == 409
    assert [line["log_level"] for line in logs] == ["debug", "debug", "info"], "strangers do not fill the log"


async def test_a_secret_of_another_namespace_must_allow_it(desk: CredentialLab) -> None:
    token = await desk.token()
    for name, allows in (("silent", ""), ("others", "red, blue"), ("listed", "red, ml"), ("all", "*")):
        await desk.secret(name, LOGIN, namespace="other", allows=allows)
    answers = {
        name: await desk.ask(await desk.backup(registry=login(name, "other")), token)
        for name in ("silent", "others", "absent", "listed", "all")
    }
    for name in ("silent", "others", "absent"):
        said = (
            f"Secret other/{name} of registry.secretRef does not exist, or does not allow its use: list ml in its "
            "annotation holdfast.dev/allow-namespaces"
        )
        assert answers[name] == (403, {"error": said})
    assert answers["listed"] == answers["all"] == (200, LOGIN)


async def test_a_missing_secret_and_one_without_a_credential_are_told(desk: CredentialLab) -> None:
    await desk.secret("odd", {"token": PASSWORD})
    token = await desk.token()
    assert await desk.refusal(await desk.backup(registry=login("absent")), token) == (
        404,
        "Secret ml/absent of registry.secretRef does not exist: create it",
    )
    status, said = await desk.refusal(await desk.backup(registry=login("odd")), token)
    assert (status, "it needs .dockerconfigjson, or username and password" in said) == (409, True)
    assert PASSWORD not in said


@pytest.mark.parametrize(
    ("user", "subject"),
    [
        ('User "system:serviceaccount:ours:op" cannot get resource', "--serviceaccount=ours:op"),
        ('User "carl" cannot get resource', "--user=carl"),
        ("no", "--serviceaccount=agents:holdfast-operator"),
    ],
)
async def test_without_the_right_to_read_secrets_the_answer_is_the_command(
    desk: CredentialLab, user: str, subject: str
) -> None:
    assert isinstance(desk.cluster, TroubledCluster)
    desk.cluster.trouble = Forbidden(f"get secrets ml/login: {user}")
    assert await desk.refusal(await desk.backup(registry=login("login")), await desk.token()) == (
        403,
        (
            "the operator may not read Secret ml/login of registry.secretRef: an administrator can allow it with "
            f"`kubectl create rolebinding holdfast-secrets --namespace=ml --clusterrole=holdfast-secrets {subject}`"
        ),
    )


async def test_no_credential_is_given_for_a_registry_without_tls_that_is_not_listed(desk: CredentialLab) -> None:
    await desk.secret("login", LOGIN)
    token = await desk.token()
    status, said = await desk.refusal(await desk.backup(registry={"url": "http://r.example", **login("login")}), token)
    assert (status, "is not reached over plain HTTP" in said) == (409, True)
    listed = await desk.backup(registry={"url": "http://plain.example:5000", **login("login")})
    assert await desk.ask(listed, token) == (200, LOGIN)


async def test_a_standby_and_a_cluster_that_does_not_answer_send_the_caller_away_for_a_while(
    desk: CredentialLab,
) -> None:
    wanted, token = await desk.backup(registry=login("login")), await desk.token()
    assert isinstance(desk.cluster, TroubledCluster)
    desk.cluster.trouble = Unreachable("get secrets ml/login: no answer")
    assert (await desk.refusal(wanted, token))[0] == 503
    desk.is_leading = False
    assert await desk.refusal(wanted, token) == (
        503,
        "this operator does not lead: look for the address of the one that does",
    )


async def test_requests_are_bounded_in_size_and_number(desk: CredentialLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handling, "clock_s", lambda: 50.0)
    wanted, token, other = await desk.backup(), await desk.token(), await desk.token()
    assert (await desk.ask(b" " * (credentials.LARGEST_BODY + 1), token))[0] == 413
    assert await desk.ask(b"{}", token) == (400, {"error": "the request for a credential can't be read"})
    answers = [(await desk.ask(wanted, token))[0] for _ in range(handling.BURST)]
    assert answers == [200] * (handling.BURST - 2) + [429] * 2
    assert (await desk.ask(wanted, other))[0] == 200
    monkeypatch.setattr(handling, "clock_s", lambda: 50.0 + handling.REFILL_S)
    assert (await desk.ask(wanted, token))[0] == 200


def test_a_secret_is_not_printed() -> None:
    secret = Secret(metadata=ObjectMeta(name="login"), data={"password": PASSWORD.encode()})
    assert PASSWORD not in repr(secret)
