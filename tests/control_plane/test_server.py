"""The control plane starts, is itself, keeps its data, and leaves nothing behind."""

import socket
import stat
from collections import Counter
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.control_plane.api import JSON
from tests.control_plane.audit import Request
from tests.control_plane.build import HERE
from tests.control_plane.component import ComponentFailed
from tests.control_plane.kubectl import KubectlFailed
from tests.control_plane.manifests import CONFIG_MAP, indexed_job
from tests.control_plane.server import ControlPlane, FreshControlPlane
from tests.control_plane.test_component import is_alive
from tests.control_plane.waiting import eventually


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


async def completed(plane: ControlPlane, namespace: str, job: str) -> None:
    async def look() -> JSON:
        found = await plane.api.request("GET", f"/apis/batch/v1/namespaces/{namespace}/jobs/{job}")
        status: JSON = found["status"]
        return status

    def is_complete(status: JSON) -> bool:
        return any(each["type"] == "Complete" and each["status"] == "True" for each in status.get("conditions", ()))

    await eventually(look, is_complete, what=f"Job {job} complete", within_s=120)


async def test_a_stopped_control_plane_leaves_no_process_and_no_listening_port(
    fresh_control_plane: FreshControlPlane,
) -> None:
    plane = fresh_control_plane()
    pids = [component.pid for component in plane.components if component.pid is not None]
    assert len(pids) == len(plane.components)
    assert all(is_listening(port) for port in plane.ports)
    plane.stop()
    assert not any(is_alive(pid) for pid in pids)
    assert not any(is_listening(port) for port in plane.ports)


async def test_objects_survive_a_stop_and_a_kill_of_every_server(fresh_control_plane: FreshControlPlane) -> None:
    plane = fresh_control_plane()
    plane.kubectl("apply", "-f", "-", input=CONFIG_MAP)
    before = plane.kubectl("get", "configmap", "kept", "-o", "jsonpath={.metadata.uid}")
    plane.stop()
    plane.start()
    assert plane.kubectl("get", "configmap", "kept", "-o", "jsonpath={.metadata.uid}") == before
    plane.kill()
    plane.start()
    assert plane.kubectl("get", "configmap", "kept", "-o", "jsonpath={.metadata.uid}") == before


async def test_the_cluster_works_on_after_etcd_and_api_server_were_restarted_under_it(
    fresh_control_plane: FreshControlPlane,
) -> None:
    plane = fresh_control_plane()
    await plane.nodes.add()
    async with plane.namespace() as namespace:
        plane.kubectl("apply", f"--namespace={namespace}", "-f", "-", input=indexed_job("before"))
        for name in await plane.pods.running(namespace, 3):
            await plane.pods.end(namespace, name)
        plane.etcd.kill()
        plane.apiserver.kill()
        plane.etcd.start()
        plane.apiserver.start()
        await completed(plane, namespace, "before")
        plane.kubectl("apply", f"--namespace={namespace}", "-f", "-", input=indexed_job("after", run_for="10ms"))
        await completed(plane, namespace, "after")


async def test_a_server_that_refuses_its_flags_fails_the_start_with_its_own_words(
    fresh_control_plane: FreshControlPlane,
) -> None:
    with pytest.raises(ComponentFailed, match="unknown flag: --no-such-flag"):
        fresh_control_plane(flags={"kube-scheduler": ["--no-such-flag"]})


async def test_after_a_failed_start_nothing_runs(binaries: Path, tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path, binaries, flags={"kube-apiserver": ["--no-such-flag"]})
    with pytest.raises(ComponentFailed):
        plane.start()
    assert [component.pid for component in plane.components] == [None] * 5
    assert not any(is_listening(port) for port in plane.ports)


async def test_the_versions_are_those_that_go_mod_pins(control_plane: ControlPlane) -> None:
    said = control_plane.kubectl("version").split()
    server, client = said[said.index("Server") + 2], said[said.index("Client") + 2]
    assert server == client
    assert f"k8s.io/kubernetes {server} " in (HERE / "go.mod").read_text()


async def test_the_old_control_plane_is_the_oldest_supported_one(old_control_plane: ControlPlane) -> None:
    version = await old_control_plane.api.request("GET", "/version")
    assert (version["emulationMajor"], version["emulationMinor"]) == ("1", "33")


async def test_a_job_completes_on_the_old_control_plane(old_control_plane: ControlPlane) -> None:
    names = await old_control_plane.nodes.add()
    async with old_control_plane.namespace() as namespace:
        job = indexed_job("trains", run_for="10ms")
        old_control_plane.kubectl("apply", f"--namespace={namespace}", "-f", "-", input=job)
        await completed(old_control_plane, namespace, "trains")
    await old_control_plane.nodes.remove(*names)


async def test_secrets_are_readable_by_their_owner_alone(control_plane: ControlPlane) -> None:
    user = control_plane.user("someone")
    secret = [control_plane.kubeconfig, user, *control_plane.folder.glob("*.key"), control_plane.folder / "tokens.csv"]
    assert len(secret) > 5
    assert {stat.S_IMODE(file.stat().st_mode) for file in secret} == {0o600}


async def test_the_administrators_token_is_on_no_command_line_and_in_no_log(control_plane: ControlPlane) -> None:
    control_plane.kubectl("get", "namespaces")
    for component in control_plane.components:
        assert control_plane.admin_token not in " ".join(component.command)
        assert control_plane.admin_token not in component.log.read_text()


async def test_a_user_may_do_what_was_granted_and_nothing_else(control_plane: ControlPlane, namespace: str) -> None:
    reader = control_plane.user(f"reader-{namespace}")
    look = ("get", "configmaps", f"--namespace={namespace}", "-o", "name")
    with pytest.raises(KubectlFailed, match=f'User "reader-{namespace}" cannot list resource "configmaps"'):
        control_plane.kubectl(*look, kubeconfig=reader)
    control_plane.grant(f"reader-{namespace}", verbs="get,list", resources="configmaps", namespace=namespace)
    assert "kube-root-ca.crt" in control_plane.kubectl(*look, kubeconfig=reader)
    with pytest.raises(KubectlFailed, match="Forbidden"):
        control_plane.kubectl("delete", "configmaps", "--all", f"--namespace={namespace}", kubeconfig=reader)


async def test_a_service_account_logs_in_with_its_token(control_plane: ControlPlane, namespace: str) -> None:
    kubeconfig = control_plane.service_account(namespace, "robot")
    who = control_plane.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}", kubeconfig=kubeconfig)
    assert who == f"system:serviceaccount:{namespace}:robot"


async def test_a_user_whose_certificate_has_expired_is_not_known(control_plane: ControlPlane) -> None:
    late = control_plane.user("late", "system:masters", valid=timedelta(minutes=-1))
    since = control_plane.audit_position()
    with pytest.raises(KubectlFailed, match="Unauthorized"):
        control_plane.kubectl("get", "--raw", "/api/v1/namespaces", kubeconfig=late)

    async def refused() -> list[Request]:
        return [request for request in control_plane.audit(since) if request.answer.code == HTTPStatus.UNAUTHORIZED]

    seen = await eventually(refused, bool, what="the refusal in the audit log")
    assert {request.user.username for request in seen} == {""}


async def test_a_member_of_a_group_has_its_rights(control_plane: ControlPlane) -> None:
    member = control_plane.user("second-admin", "system:masters")
    assert control_plane.kubectl("auth", "can-i", "*", "*", kubeconfig=member).strip() == "yes"


async def test_the_audit_log_counts_what_each_user_wrote(control_plane: ControlPlane, namespace: str) -> None:
    writer = control_plane.user(f"writer-{namespace}", "system:masters")
    since = control_plane.audit_position()
    control_plane.kubectl("create", "configmap", "one", f"--namespace={namespace}", kubeconfig=writer)
    control_plane.kubectl("get", "configmap", "one", f"--namespace={namespace}", kubeconfig=writer)
    control_plane.kubectl("label", "configmap", "one", "a=b", f"--namespace={namespace}", kubeconfig=writer)
    control_plane.kubectl("create", "configmap", "two", f"--namespace={namespace}")
    control_plane.kubectl("delete", "configmap", "one", f"--namespace={namespace}", kubeconfig=writer)

    async def writes() -> list[Request]:
        mine = control_plane.audit(since, user=f"writer-{namespace}")
        return [request for request in mine if request.is_write]

    def has_deleted(seen: list[Request]) -> bool:
        return any(request.verb == "delete" for request in seen)

    seen = await eventually(writes, has_deleted, what="the delete in the audit log")
    assert [request.verb for request in seen] == ["create", "patch", "delete"]
    assert {(request.target.resource, request.target.namespace) for request in seen} == {("configmaps", namespace)}
    assert [request.answer.code for request in seen] == [201, 200, 200]
    others = {request.user.username for request in control_plane.audit(since)}
    assert {"admin", f"writer-{namespace}"} <= others


async def test_a_watch_is_counted_once_when_it_begins(control_plane: ControlPlane, namespace: str) -> None:
    watcher = control_plane.user(f"watcher-{namespace}", "system:masters")
    wait = ("wait", "--for=delete", "configmap/kube-root-ca.crt", "--timeout=1s", f"--namespace={namespace}")
    with pytest.raises(KubectlFailed, match="timed out"):
        control_plane.kubectl(*wait, kubeconfig=watcher)

    async def verbs() -> Counter[str]:
        return Counter(request.verb for request in control_plane.audit(user=f"watcher-{namespace}"))

    seen = await eventually(verbs, lambda counted: bool(counted["watch"]), what="a watch in the audit log")
    assert seen["watch"] == 1


async def test_a_namespace_goes_when_its_test_ends(control_plane: ControlPlane) -> None:
    async with control_plane.namespace() as name:
        control_plane.kubectl("create", "configmap", "one", f"--namespace={name}")
    control_plane.kubectl("wait", "--for=delete", f"namespace/{name}", "--timeout=100s")


async def test_kubectl_fails_with_all_that_it_said(control_plane: ControlPlane) -> None:
    with pytest.raises(KubectlFailed) as failed:
        control_plane.kubectl("get", "no-such-kind")
    assert "kubectl get no-such-kind ended with exit code 1" in str(failed.value)
    assert 'the server doesn\'t have a resource type "no-such-kind"' in failed.value.output
