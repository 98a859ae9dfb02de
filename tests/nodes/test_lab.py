"""Real nodes do what the tests on them count on."""

import asyncio
import json
from functools import partial

import pytest

from tests.control_plane.waiting import eventually
from tests.nodes.lab import NODES, Lab
from tests.nodes.manifests import FOREVER, container, deployment, headless_service, pod
from tests.nodes.user import log_of, only_pod, pod_of, until_phase
from tests.operator.user import apply, kubectl

pytestmark = pytest.mark.timeout(900)

AUDIENCE = "tests.holdfast.dev"
TOKENS = "/var/run/tokens"


async def test_a_sidecar_starts_before_its_trainer_and_ends_after_it(lab: Lab, namespace: str) -> None:
    shared = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    probe = {
        "exec": {"command": ["cat", "/tmp/ready"]},
        "periodSeconds": 1,
        "timeoutSeconds": 30,
        "failureThreshold": 60,
    }
    script = f"echo begun >> /shared/order; sleep 1; echo > /tmp/ready; {FOREVER}"
    sidecar = container("sidecar", script, restartPolicy="Always", startupProbe=probe, **shared)
    trainer = container("trainer", "cat /shared/order; echo last words > /dev/termination-log; exit 7", **shared)
    manifest = pod("both", trainer, initContainers=[sidecar], volumes=[{"name": "shared", "emptyDir": {}}])
    await apply(lab.plane, namespace, manifest)
    ended = await until_phase(lab.plane, namespace, "both", "Failed")
    assert await log_of(lab.plane, namespace, "both", "trainer") == "begun\n"
    (state,) = [one["state"]["terminated"] for one in ended["status"]["containerStatuses"]]
    assert (state["exitCode"], state["message"]) == (7, "last words\n")
    assert "terminated" in ended["status"]["initContainerStatuses"][0]["state"]


async def test_pods_of_different_nodes_reach_each_other_by_name(lab: Lab, namespace: str) -> None:
    listen = "import socket as s; s.create_server(('', 8000)).accept()"
    reach = f"import socket as s; s.create_connection(('first.team.{namespace}.svc', 8000), timeout=5)"
    until = f'until python -c "{reach}"; do sleep 0.2; done'
    for name, script, node in (("first", f'python -c "{listen}"', "n1"), ("second", until, "n2")):
        placed = {"hostname": name, "subdomain": "team", "nodeName": node}
        manifest = pod(name, container("trainer", script), labels={"team": "team"}, **placed)
        await apply(lab.plane, namespace, manifest)
    await apply(lab.plane, namespace, headless_service("team"))
    await until_phase(lab.plane, namespace, "second", "Succeeded")
    await until_phase(lab.plane, namespace, "first", "Succeeded")


async def test_a_pod_proves_who_it_is_by_a_token_for_one_audience(lab: Lab, namespace: str) -> None:
    token = {"serviceAccountToken": {"audience": AUDIENCE, "expirationSeconds": 600, "path": "token"}}
    volume = {"name": "tokens", "projected": {"sources": [token]}}
    mount = {"name": "tokens", "mountPath": TOKENS}
    await apply(
        lab.plane,
        namespace,
        pod("prover", container("trainer", f"cat {TOKENS}/token", volumeMounts=[mount]), volumes=[volume]),
    )
    seen = await until_phase(lab.plane, namespace, "prover", "Succeeded")
    shown = await log_of(lab.plane, namespace, "prover", "trainer")
    async with lab.cluster() as cluster:
        identity = await cluster.review_token(shown, AUDIENCE)
        assert identity is not None
        assert identity.username == f"system:serviceaccount:{namespace}:default"
        assert seen["metadata"]["uid"] in str(identity)
        assert await cluster.review_token(shown, "another") is None


async def test_the_pods_of_a_node_that_loses_its_power_are_replaced_on_another(lab: Lab, namespace: str) -> None:
    await apply(lab.plane, namespace, deployment("server", container("server", FOREVER)))
    first = await only_pod(lab.plane, namespace, "app=server")
    node = first["spec"]["nodeName"]
    await asyncio.to_thread(lab.kill_node, node)
    await eventually(partial(_ready, lab, node), lambda ready: ready == "Unknown", what=f"{node} is not ready")
    second = await only_pod(lab.plane, namespace, "app=server", not_on=node)
    await asyncio.to_thread(lab.start_node, node)
    await eventually(
        partial(_pods, lab, namespace),
        lambda names: names == [second["metadata"]["name"]],
        what="the node that came back lets go of the pod that it had",
    )


async def test_a_node_that_is_cut_off_goes_on_computing(lab: Lab, namespace: str) -> None:
    count = "n=0; while true; do n=$((n+1)); echo $n; sleep 0.2; done"
    await apply(lab.plane, namespace, pod("counter", container("trainer", count), nodeName="n3"))
    await until_phase(lab.plane, namespace, "counter", "Running")
    await asyncio.to_thread(lab.cut, "n3")
    await eventually(partial(_ready, lab, "n3"), lambda ready: ready == "Unknown", what="n3 is not ready")
    log = lab.nodes["n3"].log_of(namespace, "counter", "trainer")
    reached = len(log.read_text().splitlines())
    await eventually(
        lambda: asyncio.to_thread(log.read_text), lambda text: len(text.splitlines()) > reached + 5, what="it counts on"
    )
    await asyncio.to_thread(lab.mend, "n3")
    await eventually(partial(_ready, lab, "n3"), lambda ready: ready == "True", what="n3 is ready again")


async def test_gpus_are_offered_and_given_away(lab: Lab, namespace: str) -> None:
    await asyncio.to_thread(lab.gpus, "n2", 4)
    three = {"limits": {"nvidia.com/gpu": "3"}}
    for name in ("one", "another"):
        await apply(lab.plane, namespace, pod(name, container("trainer", FOREVER, resources=three)))
    await until_phase(lab.plane, namespace, "one", "Running")
    assert (await pod_of(lab.plane, namespace, "one"))["spec"]["nodeName"] == "n2"
    told = await eventually(
        partial(pod_of, lab.plane, namespace, "another"),
        lambda seen: "conditions" in seen["status"],
        what="the scheduler says something",
    )
    assert "Insufficient nvidia.com/gpu" in told["status"]["conditions"][0]["message"]


async def test_all_nodes_are_of_the_control_planes_version(lab: Lab) -> None:
    listing = json.loads(await kubectl(lab.plane, "get", "nodes", "-o", "json"))
    server = json.loads(await kubectl(lab.plane, "version", "-o", "json"))["serverVersion"]["gitVersion"]
    versions = {one["metadata"]["name"]: one["status"]["nodeInfo"]["kubeletVersion"] for one in listing["items"]}
    assert versions == dict.fromkeys(NODES, server)


async def _ready(lab: Lab, name: str) -> str:
    node = json.loads(await kubectl(lab.plane, "get", "node", name, "-o", "json"))
    (status,) = [one["status"] for one in node["status"]["conditions"] if one["type"] == "Ready"]
    return str(status)


async def _pods(lab: Lab, namespace: str) -> list[str]:
    listing = json.loads(await kubectl(lab.plane, "get", "pods", "-n", namespace, "-o", "json"))
    return [one["metadata"]["name"] for one in listing["items"]]
