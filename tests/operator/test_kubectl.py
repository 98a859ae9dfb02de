"""A TrainingJob as a user handles it: every command as it is typed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest

from tests.control_plane.build import binary_folder
from tests.control_plane.component import Component
from tests.control_plane.kubectl import KubectlFailed
from tests.control_plane.nodes import Nodes
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually
from tests.operator.manifests import training_job
from tests.operator.user import apply, kubectl, status, until_state

EVERYTHING = "trainingjobs,jobs,pods,services,configmaps,serviceaccounts,deployments,persistentvolumeclaims"
# What every namespace has.
FURNITURE = {"configmap/kube-root-ca.crt", "serviceaccount/default"}


@contextmanager
def watched(plane: ControlPlane, namespace: str, folder: Path) -> Iterator[Component]:
    """`kubectl get tj -w`, until the test ends it."""
    command = [str(binary_folder() / "kubectl"), f"--kubeconfig={plane.kubeconfig}", "get", "tj", "-w", "-n", namespace]
    log = folder / "watched.txt"
    table = Component("kubectl get tj -w", command, log=log, ready=lambda: "STATE" in log.read_text())
    table.start()
    try:
        yield table
    finally:
        table.stop()


async def printed(table: Component) -> list[str]:
    """The second column; the same state again is one line for people."""
    lines = [line.split() for line in table.log.read_text().splitlines() if not line.startswith("NAME")]
    return [state for state, _ in groupby(line[1] for line in lines)]


async def test_get_w_prints_the_states_of_a_life_in_order(
    operated: ControlPlane, namespace: str, nodes: Nodes, tmp_path: Path
) -> None:
    label = {"test": namespace}
    await apply(operated, namespace, training_job("bert", scheduling={"nodeSelector": label}))
    await until_state(operated, namespace, "Pending", "bert")
    with watched(operated, namespace, tmp_path) as table:
        await nodes.add(1, labels=label)
        first, _ = await operated.pods.running(namespace, 2, labels="holdfast.dev/attempt=0")
        await until_state(operated, namespace, "Running", "bert")
        await operated.pods.end(namespace, first, 1)
        workers = await operated.pods.running(namespace, 2, labels="holdfast.dev/attempt=1")
        await until_state(operated, namespace, "Running", "bert")
        for worker in workers:
            await operated.pods.end(namespace, worker)
        await kubectl(operated, "wait", "--for=condition=Succeeded", "tj/bert", "-n", namespace, "--timeout=100s")
        await eventually(partial(printed, table), lambda seen: "Completed" in seen, what="the end is printed")
    assert await printed(table) == ["Pending", "Initializing", "Running", "Restarting", "Running", "Completed"]


async def test_scale_makes_a_new_attempt_of_that_size(operated: ControlPlane, namespace: str, nodes: Nodes) -> None:
    await nodes.add(1)
    await apply(operated, namespace, training_job("bert"))
    await until_state(operated, namespace, "Running", "bert")
    told = await kubectl(operated, "scale", "tj/bert", "--replicas=3", "-n", namespace)
    assert told.strip() == "trainingjob.ml.example.com/bert scaled"
    await operated.pods.running(namespace, 3, labels="holdfast.dev/attempt=1")
    await until_state(operated, namespace, "Running", "bert")
    told = await kubectl(operated, "get", "jobs,pods", "-n", namespace, "-l", "holdfast.dev/attempt=0", "-o", "name")
    assert told == ""
    seen = await status(operated, namespace, "bert")
    assert (seen["restartCount"], seen["workers"]["desired"], "failureReason" in seen) == (1, 3, False)
    path = "jsonpath={.spec.template.spec.containers[0].env}"
    env = await kubectl(operated, "get", "job/bert-training-1", "-n", namespace, "-o", path)
    assert {"name": "WORLD_SIZE", "value": "3"} in json.loads(env)


async def test_wait_returns_when_the_condition_holds_and_says_so(
    operated: ControlPlane, namespace: str, nodes: Nodes
) -> None:
    await nodes.add(1)
    await apply(operated, namespace, training_job("good", run_for="1s"))
    policy = {"backoffLimit": 0}
    await apply(operated, namespace, training_job("bad", run_for="1s", exit_code=1, failurePolicy=policy))
    for condition, name in (("Running", "good"), ("Succeeded", "good"), ("Failed", "bad")):
        said = await kubectl(
            operated, "wait", f"--for=condition={condition}", f"tj/{name}", "-n", namespace, "--timeout=100s"
        )
        assert said.strip() == f"trainingjob.ml.example.com/{name} condition met"
    with pytest.raises(KubectlFailed, match="timed out"):
        await kubectl(operated, "wait", "--for=condition=Succeeded", "tj/bad", "-n", namespace, "--timeout=1s")


async def test_describe_shows_what_is_waited_for_and_what_has_happened(
    operated: ControlPlane, namespace: str, nodes: Nodes
) -> None:
    label = {"test": namespace}
    await nodes.add(1)
    await apply(operated, namespace, training_job("bert", scheduling={"nodeSelector": label}))
    await until_state(operated, namespace, "Pending", "bert")
    said = await kubectl(operated, "describe", "tj/bert", "-n", namespace)
    assert f"no node matches nodeSelector test={namespace}" in value_of(said, "  Message:")
    await nodes.add(1, labels=label)
    worker, _ = await operated.pods.running(namespace, 2)
    await operated.pods.end(namespace, worker, 1, message="RuntimeError: shape mismatch")
    await operated.pods.running(namespace, 2, labels="holdfast.dev/attempt=1")
    await until_state(operated, namespace, "Running", "bert")

    async def described() -> str:
        return await kubectl(operated, "describe", "tj/bert", "-n", namespace)

    reasons = ("Waiting", "WorkersCreated", "Restarting")
    said = await eventually(described, lambda text: all(each in events(text) for each in reasons), what="all events")
    assert "exited with code 1: RuntimeError: shape mismatch" in value_of(said, "  Failure Reason:")
    assert value_of(said, "  Restart Count:") == "1"
    assert value_of(said, "    Application:") == "1"
    assert "RuntimeError: shape mismatch" in events(said)["Restarting"]


async def test_suspend_stops_the_workers_and_going_on_starts_them_again(
    operated: ControlPlane, namespace: str, nodes: Nodes
) -> None:
    await nodes.add(1)
    await apply(operated, namespace, training_job("bert"))
    await until_state(operated, namespace, "Running", "bert")
    for suspend, condition in (("true", "Suspended"), ("false", "Running")):
        patch = f'{{"spec":{{"suspend":{suspend}}}}}'
        await kubectl(operated, "patch", "tj/bert", "-n", namespace, "--type=merge", "-p", patch)
        await kubectl(operated, "wait", f"--for=condition={condition}", "tj/bert", "-n", namespace, "--timeout=100s")
        await operated.pods.running(namespace, 0 if condition == "Suspended" else 2)
    seen = await status(operated, namespace, "bert")
    assert (seen["state"], seen.get("restartCount", 0)) == ("Running", 0)


async def test_delete_leaves_nothing_but_the_claim(
    operated: ControlPlane, namespace: str, nodes: Nodes, volume: str
) -> None:
    await nodes.add(1)
    await kubectl(operated, "create", "-f", "-", input=volume)
    monitoring = {"enabled": True, "tensorboardEnabled": True}
    await apply(operated, namespace, training_job("bert", checkpoint={}, monitoring=monitoring))
    await until_state(operated, namespace, "Running", "bert")
    there = await everything(operated, namespace)
    assert {"deployment.apps/bert-tensorboard", "persistentvolumeclaim/bert-checkpoints"} < there
    await kubectl(operated, "delete", "tj/bert", "-n", namespace)
    left = await eventually(
        partial(everything, operated, namespace), lambda seen: len(seen) == 1, what="only one thing is left"
    )
    assert left == {"persistentvolumeclaim/bert-checkpoints"}
    claim = json.loads(await kubectl(operated, "get", "pvc/bert-checkpoints", "-n", namespace, "-o", "json"))
    assert claim["status"]["phase"] == "Bound"
    assert "deletionTimestamp" not in claim["metadata"]


async def everything(plane: ControlPlane, namespace: str) -> set[str]:
    told = await kubectl(plane, "get", EVERYTHING, "-n", namespace, "-o", "name")
    return set(told.split()) - FURNITURE


def value_of(text: str, label: str) -> str:
    """The value of a field of the status itself, or of one in it, told apart by their indentation."""
    return next(line for line in text.splitlines() if line.startswith(label)).removeprefix(label).strip()


def events(text: str) -> dict[str, str]:
    """The table at the end of what describe prints: the last line of each reason."""
    _, _, table = text.partition("Events:")
    rows = (line.split(maxsplit=2) for line in table.splitlines()[3:])
    return {row[1]: row[2] for row in rows if len(row) == 3}
