"""The client and a real API server."""

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import __version__
from holdfast.api.meta import Key
from holdfast.cluster.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unauthorized,
    Unreachable,
)
from holdfast.cluster.kubernetes import watch
from holdfast.cluster.kubernetes.client import KubernetesCluster
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.cluster.kubernetes.retries import RetryLimits
from holdfast.cluster.protocol import Change, DeleteOptions
from tests.control_plane.audit import Request
from tests.control_plane.server import ControlPlane, FreshControlPlane
from tests.control_plane.waiting import eventually

from .conftest import client, config_for
from .kinds import CONFIG_MAPS, JOBS, NODES, UNKNOWN

POD = {
    "containers": [{"name": "c", "image": "i"}],
    "restartPolicy": "Never",
}


@pytest.fixture(scope="session")
async def cluster(control_plane: ControlPlane) -> AsyncIterator[KubernetesCluster]:
    async with client(load_config(str(control_plane.kubeconfig), environ={})) as cluster:
        yield cluster


@pytest.fixture
async def old_cluster(old_control_plane: ControlPlane) -> AsyncIterator[KubernetesCluster]:
    async with client(load_config(str(old_control_plane.kubeconfig), environ={})) as cluster:
        yield cluster


async def make(cluster: KubernetesCluster, namespace: str, count: int) -> list[str]:
    names = [f"made-{number}" for number in range(count)]
    for name in names:
        await cluster.create(CONFIG_MAPS, {"metadata": {"name": name, "labels": {"of": "us"}}}, namespace=namespace)
    return names


class TestObjects:
    async def test_an_object_is_made_read_changed_and_deleted(self, cluster: KubernetesCluster, namespace: str) -> None:
        key = Key(namespace, "x")
        made = await cluster.create(CONFIG_MAPS, {"metadata": {"name": "x"}, "data": {"a": "1"}}, namespace=namespace)
        assert (made.metadata.key, made.data) == (key, {"a": "1"})
        assert await cluster.get(CONFIG_MAPS, key) == made

        patched = await cluster.patch(CONFIG_MAPS, key, {"data": {"a": None, "b": "2"}})
        assert patched.data == {"b": "2"}
        body = {"metadata": {"name": "x", "resourceVersion": patched.metadata.resource_version}, "data": {"c": "3"}}
        assert (await cluster.replace(CONFIG_MAPS, key, body)).data == {"c": "3"}
        with pytest.raises(Conflict):
            await cluster.replace(CONFIG_MAPS, key, body)

        with pytest.raises(Conflict):
            await cluster.delete(CONFIG_MAPS, key, DeleteOptions(uid="another"))
        await cluster.delete(CONFIG_MAPS, key, DeleteOptions(uid=made.metadata.uid))
        with pytest.raises(NotFound, match=f"get configmaps {namespace}/x: "):
            await cluster.get(CONFIG_MAPS, key)

    async def test_status_is_written_apart(self, cluster: KubernetesCluster, namespace: str) -> None:
        key = Key(namespace, "x")
        spec = {"suspend": True, "template": {"spec": POD}}
        await cluster.create(JOBS, {"metadata": {"name": "x"}, "spec": spec}, namespace=namespace)
        written = await cluster.patch_status(JOBS, key, {"spec": {"parallelism": 7}, "status": {"active": 3}})
        assert (written.spec.parallelism, written.status.active) == (1, 3)

    async def test_a_name_is_made_from_a_prefix(self, cluster: KubernetesCluster, namespace: str) -> None:
        made = await cluster.create(CONFIG_MAPS, {"metadata": {"generateName": "x-"}}, namespace=namespace)
        assert made.metadata.name.startswith("x-")

    async def test_refusals_say_what_and_why(self, cluster: KubernetesCluster, namespace: str) -> None:
        [name] = await make(cluster, namespace, 1)
        with pytest.raises(AlreadyExists, match=f"create configmaps {namespace}/{name}: "):
            await cluster.create(CONFIG_MAPS, {"metadata": {"name": name}}, namespace=namespace)
        with pytest.raises(BadRequest, match='unknown field "colour"'):
            await cluster.create(CONFIG_MAPS, {"metadata": {"name": "x"}, "colour": "red"}, namespace=namespace)
        with pytest.raises(Invalid, match='unknown field "colour"'):
            await cluster.patch(CONFIG_MAPS, Key(namespace, name), {"colour": "red"})
        job = {"metadata": {"name": "x"}, "spec": {"parallelism": -1, "template": {"spec": POD}}}
        with pytest.raises(Invalid, match=f"create jobs.batch {namespace}/x: ") as caught:
            await cluster.create(JOBS, job, namespace=namespace)
        assert [cause.field for cause in caught.value.causes] == ["spec.parallelism"]

    async def test_a_log_of_no_pod_is_not_found(self, cluster: KubernetesCluster, namespace: str) -> None:
        with pytest.raises(NotFound, match=f"read the log of pod {namespace}/x: "):
            await cluster.pod_log(Key(namespace, "x"))


class TestLists:
    async def test_streamed_and_in_pages_it_is_the_same_list(
        self,
        control_plane: ControlPlane,
        cluster: KubernetesCluster,
        namespace: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        names = await make(cluster, namespace, 8)
        streamed = await cluster.list(CONFIG_MAPS, namespace=namespace, labels="of=us")
        monkeypatch.setattr(watch, "PAGE", 3)
        kubeconfig = self.user_who_may_only_list(control_plane, namespace)
        async with client(load_config(str(kubeconfig), environ={})) as lister:
            paged = await lister.list(CONFIG_MAPS, namespace=namespace, labels="of=us")
        assert [item.metadata.name for item in streamed.items] == names
        assert paged.items == streamed.items

    def user_who_may_only_list(self, control_plane: ControlPlane, namespace: str) -> Path:
        user = f"lister-of-{namespace}"
        control_plane.grant(user, verbs="list", resources="configmaps", namespace=namespace)
        return control_plane.user(user)

    async def test_the_oldest_server_lists_in_pages(
        self, old_control_plane: ControlPlane, old_cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watch, "PAGE", 3)
        async with old_control_plane.namespace() as namespace:
            names = await make(old_cluster, namespace, 8)
            found = await old_cluster.list(CONFIG_MAPS, namespace=namespace, labels="of=us")
            assert [item.metadata.name for item in found.items] == names
            async with old_cluster.watch(
                CONFIG_MAPS, resource_version=found.resource_version, namespace=namespace
            ) as events:
                await old_cluster.delete(CONFIG_MAPS, Key(namespace, names[0]))
                assert (await anext(events)).change is Change.DELETED

    async def test_a_kind_that_nobody_installed_is_not_found(self, cluster: KubernetesCluster) -> None:
        with pytest.raises(NotFound, match="the server does not serve this kind"):
            await cluster.list(UNKNOWN)

    async def test_a_list_is_selected_by_field(self, cluster: KubernetesCluster, namespace: str) -> None:
        names = await make(cluster, namespace, 2)
        found = await cluster.list(CONFIG_MAPS, namespace=namespace, fields=f"metadata.name={names[1]}")
        assert [item.metadata.name for item in found.items] == [names[1]]


class TestWatches:
    async def test_a_watch_goes_on_where_the_list_ended(self, cluster: KubernetesCluster, namespace: str) -> None:
        [before] = await make(cluster, namespace, 1)
        listed = await cluster.list(CONFIG_MAPS, namespace=namespace)
        async with cluster.watch(
            CONFIG_MAPS, resource_version=listed.resource_version, namespace=namespace, labels="of=us"
        ) as events:
            await cluster.patch(CONFIG_MAPS, Key(namespace, before), {"data": {"big": "x" * 800_000}})
            await cluster.patch(CONFIG_MAPS, Key(namespace, before), {"metadata": {"labels": None}})
            large, gone = await anext(events), await anext(events)
        assert large.object is not None
        assert (large.change, len(large.object.data["big"])) == (Change.MODIFIED, 800_000)
        # It no longer matches the selector, which for this watch is its end.
        assert gone.change is Change.DELETED
        assert int(gone.resource_version) > int(large.resource_version) > int(listed.resource_version)

    async def test_a_watch_can_be_resumed_from_any_version_seen(
        self, cluster: KubernetesCluster, namespace: str
    ) -> None:
        listed = await cluster.list(CONFIG_MAPS, namespace=namespace)
        names = await make(cluster, namespace, 3)
        version, seen = listed.resource_version, []
        for _ in names:
            async with cluster.watch(
                CONFIG_MAPS, resource_version=version, namespace=namespace, labels="of=us"
            ) as events:
                event = await anext(events)
                assert event.object is not None
                seen.append(event.object.metadata.name)
                version = event.resource_version
        assert seen == names


class TestWhoAsks:
    async def test_without_a_role_the_error_names_the_missing_right(self, control_plane: ControlPlane) -> None:
        async with client(load_config(str(control_plane.user("jane")), environ={})) as jane:
            with pytest.raises(Forbidden, match='User "jane" cannot list resource "nodes"') as caught:
                await jane.list(NODES)
            assert str(caught.value).startswith("list nodes: not permitted: ")
            with pytest.raises(Forbidden, match='User "jane" cannot create resource "jobs"'):
                await jane.create(JOBS, {"metadata": {"name": "x"}}, namespace="default")
            with pytest.raises(Forbidden):
                async with jane.watch(NODES, resource_version="1"):
                    pass

    async def test_a_service_account_s_token_works(self, control_plane: ControlPlane, namespace: str) -> None:
        kubeconfig = control_plane.service_account(namespace, "operator")
        user = f"system:serviceaccount:{namespace}:operator"
        control_plane.grant(user, verbs="get,list,watch", resources="configmaps", namespace=namespace)
        async with client(load_config(str(kubeconfig), environ={})) as cluster:
            assert (await cluster.list(CONFIG_MAPS, namespace=namespace)).items

    async def test_a_pod_finds_its_way(self, control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
        (tmp_path / "token").write_text(control_plane.admin_token)
        (tmp_path / "ca.crt").write_bytes(control_plane.ca_file.read_bytes())
        (tmp_path / "namespace").write_text(namespace)
        host, port = control_plane.url.removeprefix("https://").split(":")
        environ = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        config = load_config(environ=environ, service_account=tmp_path)
        assert config.namespace == namespace
        async with client(config) as cluster:
            assert (await cluster.list(CONFIG_MAPS, namespace=namespace)).items

    async def test_impersonation_is_heeded(self, control_plane: ControlPlane, tmp_path: Path) -> None:
        config = self.config(control_plane, tmp_path, {"token": control_plane.admin_token, "as": "jane"})
        async with client(config) as cluster:
            with pytest.raises(Forbidden, match='User "jane"'):
                await cluster.list(NODES)

    async def test_an_exec_plugin_signs_in(self, control_plane: ControlPlane, tmp_path: Path) -> None:
        v1 = "client.authentication.k8s.io/v1"
        credential = f'{{"apiVersion":"{v1}","status":{{"token":"{control_plane.admin_token}"}}}}'
        user = {"exec": {"apiVersion": v1, "command": "echo", "args": [credential], "interactiveMode": "Never"}}
        async with client(self.config(control_plane, tmp_path, user)) as cluster:
            assert (await cluster.list(CONFIG_MAPS)).items

    async def test_a_wrong_token_is_one_clear_line(self, control_plane: ControlPlane, tmp_path: Path) -> None:
        async with client(self.config(control_plane, tmp_path, {"token": "wr0ng"})) as cluster:
            with pytest.raises(Unauthorized) as caught:
                await cluster.list(NODES)
        assert str(caught.value) == (
            "list nodes: the server does not accept who we are: the token or certificate is wrong or has expired: "
            f"sign in again, or renew it in {tmp_path}/kubeconfig, context 'test'"
        )

    async def test_an_expired_certificate_is_one_clear_line(self, control_plane: ControlPlane) -> None:
        kubeconfig = control_plane.user("late", valid=timedelta(minutes=-1))
        async with client(load_config(str(kubeconfig), environ={})) as cluster:
            with pytest.raises(Unauthorized, match="wrong or has expired"):
                await cluster.list(NODES)

    def config(self, control_plane: ControlPlane, folder: Path, user: dict[str, Any]) -> Any:
        authority = base64.b64encode(control_plane.ca_file.read_bytes()).decode()
        return config_for(folder, control_plane.url, user, certificate_authority_data=authority)


async def test_nothing_is_asked_that_was_not_wanted(
    control_plane: ControlPlane, cluster: KubernetesCluster, namespace: str
) -> None:
    """As the server's own log has it: one request for each call, and who made it."""
    since = control_plane.audit_position()
    await cluster.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace=namespace)
    await cluster.get(CONFIG_MAPS, Key(namespace, "x"))
    await cluster.list(CONFIG_MAPS, namespace=namespace)
    await cluster.patch(CONFIG_MAPS, Key(namespace, "x"), {"data": {"a": "1"}})
    await cluster.delete(CONFIG_MAPS, Key(namespace, "x"))

    async def ours() -> list[Request]:
        """A streamed list is a watch to the server, which logs its beginning and its end."""
        return [
            request
            for request in control_plane.audit(since, user="admin")
            if request.user_agent == f"holdfast/{__version__}" and request.target.namespace == namespace
            if request.verb != "watch" or request.stage == "ResponseStarted"
        ]

    # An answer is logged after it was sent.
    requests = await eventually(ours, lambda seen: len(seen) >= 5, what="five requests in the audit log")
    assert sorted(request.verb for request in requests) == ["create", "delete", "get", "patch", "watch"]
    assert all("fieldManager=holdfast" in request.uri for request in requests if request.verb in ("create", "patch"))


async def test_a_server_that_goes_and_comes_back_is_found_again(fresh_control_plane: FreshControlPlane) -> None:
    plane = fresh_control_plane()
    patience = RetryLimits(connection_attempts=2)
    async with client(load_config(str(plane.kubeconfig), environ={}), patience=patience) as cluster:
        names = await make(cluster, "default", 3)
        listed = await cluster.list(CONFIG_MAPS, labels="of=us")
        async with cluster.watch(CONFIG_MAPS, resource_version=listed.resource_version, labels="of=us") as events:
            plane.apiserver.kill()
            with pytest.raises(Unreachable):
                await anext(events)
        with pytest.raises(Unreachable, match="is the API server running"):
            await cluster.get(NODES, Key("", "x"))
        await asyncio.to_thread(plane.apiserver.start)
        assert [item.metadata.name for item in (await cluster.list(CONFIG_MAPS, labels="of=us")).items] == names
