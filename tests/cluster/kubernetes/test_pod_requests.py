"""A question to a program in a pod, by way of the API server."""

import socket

import pytest
from aiohttp import web

from holdfast.api.meta import Key
from holdfast.cluster.errors import ClusterError
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.cluster.resources import PODS
from holdfast.httpserver import listening
from tests.control_plane.server import ControlPlane

from .conftest import client


def _own_address() -> str:
    """An address of this machine that is not a loopback one: the API server passes nothing on to those."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as chosen:
        chosen.connect(("192.0.2.1", 9))  # no packet is sent
        return str(chosen.getsockname()[0])


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(text=f"holdfast_node_checkpoints_free_bytes 7\n# {request.path}\n")


async def test_the_api_server_passes_a_question_on(control_plane: ControlPlane, namespace: str) -> None:
    app = web.Application()
    app.router.add_get("/metrics", _metrics)
    async with client(load_config(str(control_plane.kubeconfig))) as cluster, listening(app, host=None, port=0) as port:
        spec = {"nodeName": "nowhere", "containers": [{"name": "c", "image": "i"}]}
        await cluster.create(PODS, {"metadata": {"name": "agent"}, "spec": spec}, namespace=namespace)
        key, address = Key(namespace, "agent"), _own_address()
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        await cluster.patch_status(PODS, key, {"status": status})
        answer = await cluster.ask_pod(key, port=port, path="/metrics")
        assert answer == b"holdfast_node_checkpoints_free_bytes 7\n# /metrics\n"
        with pytest.raises(ClusterError, match=f"ask port {port} of pod {key}"):
            await cluster.ask_pod(key, port=port, path="/nothing")


async def test_a_user_without_the_right_gets_an_error(control_plane: ControlPlane, namespace: str) -> None:
    async with client(load_config(str(control_plane.user("no-proxy")))) as cluster:
        with pytest.raises(ClusterError, match="pods/proxy"):
            await cluster.ask_pod(Key(namespace, "agent"), port=9109, path="/metrics")


async def test_the_version_of_the_server_is_returned(control_plane: ControlPlane) -> None:
    async with client(load_config(str(control_plane.kubeconfig))) as cluster:
        assert (await cluster.server_version()).startswith("v1.")
