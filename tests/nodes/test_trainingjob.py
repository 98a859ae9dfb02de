"""TrainingJobs in real containers, on nodes that really die."""

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from holdfast.runtime.reachability import try_connect
from tests.control_plane.waiting import eventually
from tests.nodes.jobs import SMALL, WITHIN_S, ended, provide_volume, shared_folder, training_job, workers
from tests.nodes.lab import NODES, Lab
from tests.nodes.operated import operator
from tests.nodes.settings import AS_ALWAYS, KUBELET_PORT
from tests.nodes.user import log_of
from tests.operator.process import OperatorProcess
from tests.operator.user import apply, kubectl, status

pytestmark = pytest.mark.timeout(900)

# Epochs of a training that lasts long enough for something to be done to it.
LONG = 1000


@pytest.fixture(scope="module")
def lab(real_nodes: None) -> Iterator[Lab]:
    """Three nodes with a GPU each, with Kubernetes as patient with them as it is everywhere."""
    with Lab(pace=AS_ALWAYS).running() as lab:
        for node in NODES:
            lab.gpus(node, 1)
        yield lab


@pytest.fixture(scope="module")
def operating(lab: Lab) -> Iterator[OperatorProcess]:
    with operator(lab) as process:
        yield process


@pytest.fixture
async def claim(lab: Lab, namespace: str) -> str:
    """For a volume that all nodes share."""
    return await provide_volume(lab, namespace)


@pytest.fixture(scope="module")
async def undisturbed(lab: Lab, operating: OperatorProcess) -> dict[str, float]:
    """What a training comes to that nothing happens to."""
    async with lab.plane.namespace() as namespace:
        claim = await provide_volume(lab, namespace)
        await apply(lab.plane, namespace, training_job("alone", **_kept(claim)))
        told = await ended(lab, namespace, "alone")
        assert (told["state"], told.get("restartCount", 0), told["progress"]) == ("Completed", 0, "100%")
        return await _last_words(lab, namespace, "alone")


async def test_a_job_that_loses_a_node_ends_as_if_nothing_had_happened(
    lab: Lab, namespace: str, claim: str, undisturbed: dict[str, float]
) -> None:
    await apply(lab.plane, namespace, training_job("bereft", **_kept(claim)))
    await _until_trains(lab, namespace, "bereft")
    await _until_saved(lab, namespace, "bereft", 2)
    node = (await workers(lab, namespace, "bereft"))[0]["spec"]["nodeName"]
    kubelet = (lab.nodes[node].address, KUBELET_PORT)
    assert await try_connect(kubelet) == "accepted"
    await asyncio.to_thread(lab.kill_node, node)
    assert await try_connect(kubelet) == "unreachable"
    again = await _told(lab, namespace, "bereft", lambda seen: seen.get("restartCount") == 1, "starts anew")
    assert "its node has not renewed its Lease for 20 s" in again["failureReason"]
    told = await ended(lab, namespace, "bereft")
    assert (told["state"], told["restarts"]) == ("Completed", {"infrastructure": 1})
    assert told["checkpoint"]["resumedFrom"].startswith("/checkpoints/attempt-0/")
    assert await _last_words(lab, namespace, "bereft") == undisturbed
    await asyncio.to_thread(lab.start_node, node)


async def test_a_worker_that_is_cut_off_is_replaced_and_can_harm_nobody_when_it_is_back(
    lab: Lab, namespace: str, claim: str, undisturbed: dict[str, float]
) -> None:
    await apply(lab.plane, namespace, training_job("parted", **_kept(claim)))
    await _until_trains(lab, namespace, "parted")
    await _until_saved(lab, namespace, "parted", 2)
    lost = (await workers(lab, namespace, "parted"))[0]
    node = lost["spec"]["nodeName"]
    await asyncio.to_thread(lab.cut, node)
    told = await ended(lab, namespace, "parted")
    assert (told["state"], told["restarts"]) == ("Completed", {"infrastructure": 1})
    await asyncio.to_thread(lab.mend, node)
    await asyncio.to_thread(lab.await_ready, node)
    gone = ("wait", "--for=delete", f"pod/{lost['metadata']['name']}", "-n", namespace, "--timeout=110s")
    await kubectl(lab.plane, *gone)
    assert await _last_words(lab, namespace, "parted") == undisturbed
    after = await status(lab.plane, namespace, "parted")
    assert (after["state"], after["restarts"], after["checkpoint"]) == (
        told["state"],
        told["restarts"],
        told["checkpoint"],
    )


async def test_a_node_on_which_everything_stands_still_is_not_taken_for_dead(
    lab: Lab, operating: OperatorProcess, namespace: str
) -> None:
    longer = {"hyperparameters": {"epochs": 10 * LONG, "additionalParams": SMALL}}
    await apply(lab.plane, namespace, training_job("stalled", **longer))
    await _until_trains(lab, namespace, "stalled")
    node = (await workers(lab, namespace, "stalled"))[1]["spec"]["nodeName"]
    await asyncio.to_thread(lab.stall, node)
    try:
        # Long after a node that can't be reached would have been given up: its Lease stands still for 50 s by then.
        await eventually(
            partial(_is_ready, lab, node), lambda ready: not ready, what=f"{node} is not ready", within_s=WITHIN_S
        )
        seen = await status(lab.plane, namespace, "stalled")
        assert await try_connect((lab.nodes[node].address, KUBELET_PORT)) == "accepted"
    finally:
        await asyncio.to_thread(lab.unstall, node)
    assert (seen["state"], seen.get("restartCount", 0)) == ("Running", 0)
    await asyncio.to_thread(lab.await_ready, node)
    later = seen["currentEpoch"] + 50
    again = await _told(lab, namespace, "stalled", lambda now: now.get("currentEpoch", 0) > later, "trains on")
    assert again.get("restartCount", 0) == 0
    await kubectl(lab.plane, "delete", "tj", "stalled", "-n", namespace)


async def test_a_job_that_is_suspended_saves_first_and_goes_on_from_there(
    lab: Lab, operating: OperatorProcess, namespace: str, claim: str
) -> None:
    rare = _kept(claim, frequency=LONG)
    longer = {"hyperparameters": {"epochs": LONG - 1, "additionalParams": SMALL}}
    await apply(lab.plane, namespace, training_job("paused", **rare, **longer))
    await _until_trains(lab, namespace, "paused")
    await _suspend(lab, namespace, "paused", True)
    told = await _told(lab, namespace, "paused", _has_stopped, "has stopped")
    saved = told["checkpoint"]
    assert 0 < saved["lastEpoch"] < LONG - 1, "nothing but the request to save can have caused that"
    await _suspend(lab, namespace, "paused", False)
    ended_so = await ended(lab, namespace, "paused")
    assert (ended_so["state"], ended_so.get("restartCount", 0)) == ("Completed", 0)
    assert ended_so["checkpoint"]["resumedFrom"] == saved["last"]


async def test_an_image_that_is_nowhere_is_named(lab: Lab, operating: OperatorProcess, namespace: str) -> None:
    await apply(lab.plane, namespace, training_job("image", image="localhost/nothing:1"))
    told = await _said(lab, namespace, "image", "can't be pulled")
    assert told["state"] == "Initializing"
    assert told["message"].startswith('waiting for 2 of 2 workers: image "localhost/nothing:1" can\'t be pulled: ')
    assert "correct spec.image" in told["message"]


async def test_a_secret_that_is_not_there_is_named(lab: Lab, operating: OperatorProcess, namespace: str) -> None:
    variable = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    await apply(lab.plane, namespace, training_job("secret", env=[variable]))
    told = await _said(lab, namespace, "secret", "can't be configured")
    assert told["state"] == "Initializing"
    expected = 'waiting for 2 of 2 workers: container trainer can\'t be configured: secret "hub" not found'
    assert told["message"].startswith(expected)
    await kubectl(lab.plane, "create", "secret", "generic", "hub", "--from-literal=token=x", "-n", namespace)
    assert (await ended(lab, namespace, "secret"))["state"] == "Completed"


async def test_a_worker_that_needs_more_memory_than_it_has_is_said_to(
    lab: Lab, operating: OperatorProcess, namespace: str
) -> None:
    greedy = "import os, time; time.sleep(9e9 if os.environ['RANK'] == '0' else 0); x = b'x' * 2**30"
    limited = {"resources": {"limits": {"memory": "128Mi"}}, "failurePolicy": {"backoffLimit": 1}}
    await apply(lab.plane, namespace, training_job("greedy", command=["python", "-c", greedy], **limited))
    told = await ended(lab, namespace, "greedy")
    assert (told["state"], told["restarts"]) == ("Failed", {"outOfMemory": 1})
    assert "worker 1 on " in told["failureReason"]
    assert "ran out of memory (OOMKilled, exit code 137; raise resources.limits.memory)" in told["failureReason"]


async def _is_ready(lab: Lab, node: str) -> bool:
    condition = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    return await kubectl(lab.plane, "get", "node", node, "-o", condition) == "True"


async def _told(
    lab: Lab, namespace: str, name: str, enough: Callable[[dict[str, Any]], bool], what: str
) -> dict[str, Any]:
    """The job's status as soon as it says so much."""
    look = partial(status, lab.plane, namespace, name)
    return await eventually(look, enough, what=f"{name} {what}", within_s=WITHIN_S)


async def _until_trains(lab: Lab, namespace: str, name: str) -> None:
    """Return when the operator has heard of an epoch, and so has heard the first worker."""
    await _told(lab, namespace, name, lambda seen: seen.get("currentEpoch", 0) > 0, "trains")


def _has_stopped(seen: dict[str, Any]) -> bool:
    return seen.get("state") == "Suspended" and not seen["workers"].get("active") and "checkpoint" in seen


async def _said(lab: Lab, namespace: str, name: str, word: str) -> dict[str, Any]:
    return await _told(lab, namespace, name, lambda seen: word in seen.get("message", ""), f"says {word}")


async def _suspend(lab: Lab, namespace: str, name: str, wanted: bool) -> None:
    patch = json.dumps({"spec": {"suspend": wanted}})
    await kubectl(lab.plane, "patch", "tj", name, "-n", namespace, "--type=merge", f"--patch={patch}")


async def _until_saved(lab: Lab, namespace: str, name: str, epoch: int) -> None:
    """Return when that epoch is saved, or a later one: old checkpoints do not stay."""

    async def newest() -> int:
        folders = (shared_folder(lab, namespace) / namespace / name).glob("*/attempt-*/checkpoint-epoch-*")
        return max((int(folder.name.rpartition("-")[2]) for folder in folders), default=0)

    await eventually(newest, lambda seen: seen >= epoch, what=f"epoch {epoch} is saved", within_s=WITHIN_S)


def _kept(claim: str, **more: Any) -> dict[str, Any]:
    return {"checkpoint": {"storage": {"type": "pvc", "pvcName": claim}, **more}}


async def _last_words(lab: Lab, namespace: str, name: str) -> dict[str, float]:
    """What the first worker said at its end: the loss and accuracy that it has come to."""
    pod = (await workers(lab, namespace, name))[0]
    log = await log_of(lab.plane, namespace, pod["metadata"]["name"], "trainer")
    said: dict[str, float] = json.loads(log.splitlines()[-1])
    return said
