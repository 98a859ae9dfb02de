"""The operator as a process on a real API server: a TrainingJob's life, and the operator's own."""

import asyncio
import json
import re
import urllib.request
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.control_plane.component import Component
from tests.control_plane.nodes import Nodes
from tests.control_plane.server import ControlPlane, FreshControlPlane
from tests.control_plane.waiting import eventually
from tests.operator.conftest import StartOperator, install_kinds
from tests.operator.manifests import training_job
from tests.operator.process import OperatorProcess
from tests.operator.user import apply, kubectl, until_state

RBAC = Path(__file__).parents[2] / "manifests" / "operator" / "rbac.yaml"
CHILDREN = "configmaps,services,serviceaccounts,jobs"
# Longer than a Lease is valid, with room for a slow machine.
TAKEOVER_S = 60.0
# How long the operator goes on between two looks at its writes.
STEP_S = 0.1


async def children(plane: ControlPlane, namespace: str) -> list[str]:
    """Every child of ours in the namespace, as kind/name."""
    told = await kubectl(plane, "get", CHILDREN, "-n", namespace, "-l", "training-job", "-o", "name")
    return sorted(told.split())


def family(name: str) -> list[str]:
    return [
        f"configmap/{name}-config",
        f"job.batch/{name}-training",
        f"service/{name}-headless",
        f"service/{name}-master",
        f"serviceaccount/{name}",
    ]


def families(*names: str) -> list[str]:
    return sorted(child for name in names for child in family(name))


async def settled(operator: OperatorProcess, position: int) -> int:
    """Where the audit log ends once the operator has written nothing for two seconds."""

    async def quiet() -> bool:
        before = len(operator.writes(position))
        await asyncio.sleep(2)
        return len(operator.writes(position)) == before

    await eventually(quiet, bool, what="the operator has nothing more to write")
    return operator.plane.audit_position()


async def test_a_training_job_is_taken_to_its_children_and_followed_to_completed(
    plane: ControlPlane, namespace: str, nodes: Nodes, start_operator: StartOperator
) -> None:
    await nodes.add(1)
    start_operator(plane, f"--namespace={namespace}", f"--lease-namespace={namespace}")
    await apply(plane, namespace, training_job("bert"))
    workers = await plane.pods.running(namespace, 2)
    await until_state(plane, namespace, "Running", "bert")
    assert await children(plane, namespace) == family("bert")
    for worker in workers:
        await plane.pods.end(namespace, worker)
    await kubectl(plane, "wait", "-n", namespace, "tj/bert", "--for=condition=Succeeded", "--timeout=100s")
    status = json.loads(await kubectl(plane, "get", "tj/bert", "-n", namespace, "-o", "json"))["status"]
    assert status["state"] == "Completed"
    assert status["workers"] == {"desired": 2, "succeeded": 2}
    assert status["observedGeneration"] == 1
    assert status["completionTime"] >= status["startTime"]
    assert re.fullmatch(r"(\d+m)?(\d+s)?", status["duration"])
    told = await kubectl(plane, "get", "events", "-n", namespace, "--field-selector=involvedObject.name=bert")
    assert [line.split()[2] for line in told.splitlines()[1:]] == ["WorkersCreated"]
    table = (await kubectl(plane, "get", "tj", "-n", namespace)).splitlines()
    assert table[0].split() == ["NAME", "STATE", "PROGRESS", "EPOCH", "AGE"]


async def test_how_workers_find_each_other_is_the_operators_to_decide(
    plane: ControlPlane, namespace: str, nodes: Nodes, start_operator: StartOperator
) -> None:
    await nodes.add(1)
    options = ("--no-leader-elect", "--discovery=namespace", "--cluster-domain=k8s.example")
    start_operator(plane, f"--namespace={namespace}", *options)
    await apply(plane, namespace, training_job("bert"))
    await until_state(plane, namespace, "Running", "bert")
    listing = json.loads(await kubectl(plane, "get", "services", "-n", namespace, "-o", "json"))
    services = {each["metadata"]["name"]: each["spec"] for each in listing["items"]}
    assert set(services) == {"bert-headless", "bert-master", "holdfast-workers"}
    assert services["bert-master"]["externalName"] == f"bert-training-0.holdfast-workers.{namespace}.svc.k8s.example"


async def test_a_settled_object_is_reconciled_without_a_write(
    plane: ControlPlane, namespace: str, nodes: Nodes, start_operator: StartOperator
) -> None:
    await nodes.add(1)
    options = (f"--namespace={namespace}", f"--lease-namespace={namespace}")
    first = start_operator(plane, *options)
    await apply(plane, namespace, training_job("running"))
    await apply(plane, namespace, training_job("done", run_for="100ms"))
    await until_state(plane, namespace, "Running", "running")
    await until_state(plane, namespace, "Completed", "done")
    await settled(first, 0)
    first.stop()
    # Another operator has seen nothing yet and looks at everything once; a touched object makes it look again.
    second = start_operator(plane, *options)
    await eventually(partial(reconciles, second), lambda count: count >= 2, what="both jobs looked at")
    before = await reconciles(second)
    await kubectl(plane, "annotate", "tj", "--all", "-n", namespace, "touched=yes")
    await eventually(partial(reconciles, second), lambda count: count >= before + 2, what="both looked at again")
    await settled(second, 0)
    assert second.writes() == []


async def test_a_job_costs_few_writes(
    plane: ControlPlane, namespace: str, nodes: Nodes, start_operator: StartOperator
) -> None:
    await nodes.add(1)
    operator = start_operator(plane, f"--namespace={namespace}", f"--lease-namespace={namespace}")
    await apply(plane, namespace, training_job("bert", run_for="500ms"))
    await until_state(plane, namespace, "Completed", "bert")
    await settled(operator, 0)
    counts = Counter((one.verb, one.target.resource, one.target.subresource) for one in operator.writes())
    made = {key: count for key, count in counts.items() if key[0] == "create"}
    assert made == {
        ("create", "configmaps", ""): 1,
        ("create", "services", ""): 2,
        ("create", "serviceaccounts", ""): 1,
        ("create", "jobs", ""): 1,
    }
    assert set(counts) - set(made) == {("patch", "trainingjobs", "status")}
    assert all(one.answer.code < 300 for one in operator.writes())


@pytest.mark.parametrize("moment", range(4))
async def test_killed_while_it_makes_children_it_ends_with_one_set_of_them(
    plane: ControlPlane, namespace: str, nodes: Nodes, start_operator: StartOperator, moment: int
) -> None:
    await nodes.add(1)
    # kubectl applies them one after another: most are not there yet when the operator dies.
    jobs = [f"job-{number}" for number in range(30)]
    operator = start_operator(plane, f"--namespace={namespace}", "--no-leader-elect", "--workers=1")
    manifest = "---\n".join(training_job(name, run_for="100ms", numWorkers=1) for name in jobs)
    applying = asyncio.create_task(apply(plane, namespace, manifest))
    await kill_after_writes(operator, 3 + moment)
    await applying
    assert len(await children(plane, namespace)) < len(families(*jobs))
    operator.start()
    await until_state(plane, namespace, "Completed", *jobs)
    assert await children(plane, namespace) == families(*jobs)
    # Creates that the server carried out; a refused one (AlreadyExists) after the crash is what it should be, and one
    # that was cut off by it has no answer.
    made = Counter(one.target.resource for one in operator.writes() if one.verb == "create" and one.answer.code == 201)
    count = len(jobs)
    assert made <= Counter({"configmaps": count, "services": 2 * count, "serviceaccounts": count, "jobs": count})


async def kill_after_writes(operator: OperatorProcess, count: int) -> None:
    """Wherever in a job's children that is. It stands still while its writes are counted, which may take long."""

    async def step() -> int:
        operator.resume()
        await asyncio.sleep(STEP_S)
        operator.pause()
        return len(await asyncio.to_thread(operator.writes))

    await eventually(step, lambda seen: seen > count, what="some children are made", within_s=180)
    operator.kill()


async def test_two_operators_with_one_lease_one_acts_and_the_other_takes_over_when_it_dies(
    plane: ControlPlane, namespace: str, nodes: Nodes, start_operator: StartOperator
) -> None:
    await nodes.add(1)
    options = (f"--namespace={namespace}", f"--lease-namespace={namespace}")
    operators = [start_operator(plane, *options) for _ in range(2)]
    await eventually(partial(leaders, operators), bool, what="one of them leads")
    await apply(plane, namespace, training_job("first", run_for="100ms"))
    await until_state(plane, namespace, "Completed", "first")
    (leader,) = await leaders(operators)
    (standby,) = (one for one in operators if one is not leader)
    assert standby.writes() == []
    leader.kill()
    await apply(plane, namespace, training_job("second", run_for="100ms"))
    await until_state(plane, namespace, "Completed", "second", within_s=TAKEOVER_S)
    assert await children(plane, namespace) == families("first", "second")


async def test_a_leader_that_stops_gives_the_lease_away_at_once(
    plane: ControlPlane, namespace: str, start_operator: StartOperator
) -> None:
    operator = start_operator(plane, f"--namespace={namespace}", f"--lease-namespace={namespace}")
    await eventually(partial(leaders, [operator]), bool, what="it leads")
    operator.stop()
    lease = json.loads(await kubectl(plane, "get", "lease", "holdfast-operator", "-n", namespace, "-o", "json"))
    assert lease["spec"].get("holderIdentity", "") == ""
    assert operator.exit_code == 0


async def test_a_leader_that_was_paused_beyond_its_lease_writes_nothing_when_it_wakes(
    plane: ControlPlane, namespace: str, nodes: Nodes, start_operator: StartOperator
) -> None:
    await nodes.add(1)
    options = (f"--namespace={namespace}", f"--lease-namespace={namespace}")
    paused = start_operator(plane, *options)
    await eventually(partial(leaders, [paused]), bool, what="the first leads")
    await apply(plane, namespace, training_job("first"))
    await until_state(plane, namespace, "Running", "first")
    await settled(paused, 0)
    paused.pause()
    standby = start_operator(plane, *options)
    # What happens while it sleeps is work that it would do at once on waking.
    await apply(plane, namespace, training_job("second"))
    await kubectl(plane, "delete", "configmap", "first-config", "-n", namespace)
    await until_state(plane, namespace, "Running", "second", within_s=TAKEOVER_S)
    await settled(standby, 0)
    await kubectl(plane, "delete", "configmap", "second-config", "-n", namespace)
    position = plane.audit_position()
    paused.resume()
    await eventually(lambda: asyncio.to_thread(lambda: paused.pid), lambda pid: pid is None, what="it ends by itself")
    assert paused.exit_code == 1
    assert paused.writes(position) == []
    assert "Lease" in paused.tail(lines=1)


async def test_it_goes_on_by_itself_when_etcd_and_the_api_server_come_back(
    fresh_control_plane: FreshControlPlane, start_operator: StartOperator
) -> None:
    plane = fresh_control_plane()
    install_kinds(plane)
    await plane.nodes.add(1)
    operator = start_operator(plane, "--namespace=default", "--no-leader-elect")
    await apply(plane, "default", training_job("before"))
    await until_state(plane, "default", "Running", "before")
    for component in (plane.etcd, plane.apiserver):
        await asyncio.to_thread(component.kill)
    await eventually(partial(readiness, operator), lambda ready: ready[0] == 503, what="it says that it is cut off")
    restart: list[Component] = [plane.etcd, plane.apiserver]
    for component in restart:
        await asyncio.to_thread(component.start)
    await eventually(partial(readiness, operator), lambda ready: ready[0] == 200, what="it is in touch again")
    await apply(plane, "default", training_job("after", run_for="100ms"))
    await until_state(plane, "default", "Completed", "after")
    for worker in await plane.pods.running("default", 2, labels="training-job=before"):
        await plane.pods.end("default", worker)
    await until_state(plane, "default", "Completed", "before")


async def test_the_rights_in_the_manifests_are_enough(
    plane: ControlPlane, namespace: str, nodes: Nodes, start_operator: StartOperator
) -> None:
    await nodes.add(1)
    account = "holdfast-operator"
    manifest = RBAC.read_text().replace("holdfast-system", namespace).replace(f"name: {account}", f"name: {namespace}")
    manifest = manifest.replace(f"resourceNames: [{namespace}]", f"resourceNames: [{account}]")
    await kubectl(plane, "apply", "-f", "-", input=manifest)  # some of it is for other namespaces
    token = (await kubectl(plane, "create", "token", namespace, "-n", namespace)).strip()
    login = plane.kubeconfig.read_text().replace(plane.admin_token, token)
    kubeconfig = plane.folder / f"{namespace}.kubeconfig"
    kubeconfig.write_text(login)
    kubeconfig.chmod(0o600)
    operator = start_operator(
        plane, f"--namespace={namespace}", f"--lease-namespace={namespace}", kubeconfig=kubeconfig
    )
    await apply(plane, namespace, training_job("bert"))
    await until_state(plane, namespace, "Running", "bert")
    await kubectl(plane, "scale", "tj/bert", "--replicas=1", "-n", namespace)
    (worker,) = await plane.pods.running(namespace, 1, labels="holdfast.dev/attempt=1")
    await plane.pods.end(namespace, worker)
    await until_state(plane, namespace, "Completed", "bert")
    refused = [
        one for one in plane.audit(user=f"system:serviceaccount:{namespace}:{namespace}") if one.answer.code == 403
    ]
    assert refused == []
    assert operator.pid is not None


async def leaders(operators: list[OperatorProcess]) -> list[OperatorProcess]:
    return [operator for operator in operators if operator.leads()]


async def reconciles(operator: OperatorProcess) -> int:
    """How many reconciles of TrainingJobs have ended, by its own metrics."""
    text = await asyncio.to_thread(fetch, f"http://127.0.0.1:{operator.metrics_port}/metrics")
    counts = re.findall(r"^holdfast_reconciles_total\{.*\} (\S+)$", text[1], re.MULTILINE)
    return int(sum(float(count) for count in counts))


async def readiness(operator: OperatorProcess) -> tuple[int, str]:
    return await asyncio.to_thread(fetch, f"http://127.0.0.1:{operator.health_port}/readyz")


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
