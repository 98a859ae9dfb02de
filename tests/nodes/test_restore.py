"""Programs without any checkpoint code go on in the middle of their loops on another node, with the memory they had."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.api.core.objects import Pod
from holdfast.pods.restore.containerd import CONTAINERD
from holdfast.pods.restore.failure import CreationFailure, creation_failure
from holdfast.pods.restore.nodes import RestorableImage
from holdfast.pods.restore.protocol import Fault
from tests.checkpoints.images.registries import PASSWORD
from tests.control_plane.kubectl import KubectlFailed
from tests.control_plane.waiting import eventually
from tests.nodes.agents import agent_log, nothing_left_over
from tests.nodes.backup_lab import BackupLab, backing_up, counts, restoring_lab
from tests.nodes.backups import REPOSITORY, Save, goes_on
from tests.nodes.container_checkpoints import COUNTING, counting_pod, lines_of, python_container
from tests.nodes.images import environment
from tests.nodes.lab import Lab
from tests.nodes.limits import (
    GOES_ON,
    LIMITS,
    LOST,
    NOT_RESTORED,
    NOT_SAVED,
    PORT,
    holding_container,
    table,
    volumes,
)
from tests.nodes.manifests import pod
from tests.nodes.registry import SECRET, push_python
from tests.nodes.user import pod_of
from tests.operator.user import apply, kubectl

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def lab(checkpointing: None) -> Iterator[Lab]:
    with restoring_lab() as lab:
        yield lab


@pytest.fixture(scope="module")
async def ready(lab: Lab) -> AsyncIterator[BackupLab]:
    async with backing_up(lab) as ready:
        yield ready


@pytest.fixture
async def save(ready: BackupLab, namespace: str) -> Save:
    save = Save(ready.lab, ready.passwords, namespace)
    await save.prepare()
    return save


async def test_a_program_goes_on_elsewhere_when_its_node_has_lost_its_power(save: Save) -> None:
    (before,) = await counts(save, "counter", counting_pod("counter", "n1"))
    await save.create("once", "counter")
    told = await save.completed("once")
    assert (told["nodeName"], told["mode"], told["run"]) == ("n1", "container", 1)
    await nothing_left_over(save.lab, "n1")
    look = partial(lines_of, save.lab, save.namespace, "counter")
    since = len(await look())
    ran_on = await eventually(look, lambda lines: len(lines) > since + 3, what="it runs on")
    assert [line.step for line in ran_on] == list(range(1, len(ran_on) + 1)), "as if nothing had happened"
    await asyncio.to_thread(save.lab.kill_node, "n1")
    try:
        await kubectl(save.lab.plane, "wait", "--for=condition=Ready=Unknown", "node/n1", "--timeout=60s")
        again = await save.restore("once")
        assert (await pod_of(save.lab.plane, save.namespace, again))["spec"]["nodeName"] == "n2"
        await goes_on(save, again, before)
    finally:
        await asyncio.to_thread(save.lab.start_node, "n1")


async def test_two_containers_go_on_together_and_the_pod_that_was_saved_is_gone(save: Save) -> None:
    containers = [python_container(name, COUNTING) for name in ("trainer", "logger")]
    manifest = pod("pair", *containers, nodeName="n1", automountServiceAccountToken=False)
    before = await counts(save, "pair", manifest, "trainer", "logger")
    await save.create("moved", "pair", stopPod=True)
    told = await save.completed("moved")
    assert told["phase"] == "CompletedPodDeleted"
    assert sorted(image["containerName"] for image in told["builtImages"]) == ["logger", "trainer"]
    gone = ("wait", "--for=delete", "pod/pair", "-n", save.namespace, "--timeout=60s")
    await kubectl(save.lab.plane, *gone)
    again = await save.restore("moved", "-f", "-", "--node", "n2", stdin=manifest)
    for name, lines in zip(("trainer", "logger"), before, strict=True):
        await goes_on(save, again, lines, name)


async def test_a_base_image_that_needs_a_password_is_brought_first_with_the_pods_own_secret(
    ready: BackupLab, save: Save
) -> None:
    restricted = "pod-security.kubernetes.io/enforce=restricted"
    await kubectl(save.lab.plane, "label", "namespace", save.namespace, restricted)
    await ready.tokens.provide_secret(save.lab, save.namespace, "base")
    image = await push_python(save.lab, ready.tokens, "team/python", environment())
    container = {**python_container("trainer", COUNTING), "image": image}
    own: dict[str, Any] = {"imagePullSecrets": [{"name": "base"}], "automountServiceAccountToken": False}
    (before,) = await counts(save, "private", pod("private", container, nodeName="n1", **own))
    await save.create("private", "private")
    await save.completed("private")
    again = await save.restore("private", "--node", "n2")
    await goes_on(save, again, before)
    pods = await kubectl(save.lab.plane, "get", "pods", "-n", save.namespace, "-o", "name")
    assert "base-image" not in pods, "what brought it is gone"


async def test_what_the_page_says_of_limits_is_what_is_seen(ready: BackupLab, save: Save) -> None:
    server = await asyncio.start_server(_echo, save.lab.addresses.host, 0)
    peer = (save.lab.addresses.host, str(server.sockets[0].getsockname()[1]))
    async with server:
        seen = await asyncio.gather(*(_outcome(save, limit.kind, peer) for limit in LIMITS))
    assert {limit.row: outcome for limit, outcome in zip(LIMITS, seen, strict=True)} == table()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while content := await reader.read(1):
        writer.write(content)
    writer.close()


async def _outcome(save: Save, kind: str, peer: tuple[str, str]) -> str:
    """Save a container that has this, restore it, and look whether it still has it."""
    manifest = pod(
        kind,
        holding_container(kind, *peer),
        nodeName="n1",
        automountServiceAccountToken=False,
        volumes=volumes(kind),
    )
    await apply(save.lab.plane, save.namespace, manifest)
    await eventually(partial(_held, save, kind), lambda seen: len(seen) > 3, what=f"{kind} holds it")
    await save.create(kind, kind, mode="container")
    told = await save.ended(kind)
    if told["phase"] == "Failed":
        assert "criu failed" in told["message"], told
        return NOT_SAVED
    done = await save.holdfast("restore", kind, "--node", "n2")
    if done.code:
        assert "can't be created from its checkpoint on n2" in done.err, done
        return NOT_RESTORED
    before = len(await _held(save, f"{kind}-run-1"))
    held = await eventually(
        partial(_held, save, f"{kind}-run-1"), lambda seen: len(seen) > before + 3, what=f"{kind} goes on"
    )
    if kind == "listener":
        address = (await pod_of(save.lab.plane, save.namespace, f"{kind}-run-1"))["status"]["podIP"]
        reader, writer = await asyncio.open_connection(address, PORT)
        answered = await reader.read(64)
        writer.close()
        return GOES_ON if answered.decode() == held[0][0] else LOST
    return GOES_ON if held[-1][1] == "True" else LOST


async def _held(save: Save, name: str) -> list[tuple[str, str]]:
    """The identity, and whether it has what it should, at each step."""
    try:
        text = await kubectl(save.lab.plane, "logs", name, "-n", save.namespace)
    except KubectlFailed:  # its container is not there yet
        return []
    return re.findall(r"^(\w{16}) \d+ (True|False)\n", text, re.MULTILINE)


async def test_a_node_without_restore_is_never_chosen_and_a_pod_that_is_forced_there_fails_with_our_words(
    save: Save,
) -> None:
    await counts(save, "forced", counting_pod("forced", "n1"))
    await save.create("forced", "forced")
    (built,) = (await save.completed("forced"))["builtImages"]
    assert "n3" not in (await save.holdfast("restore", "forced", "--dry-run")).out
    refused = await save.holdfast("restore", "forced", "--node", "n3")
    assert refused.code == 1
    assert "no node has the label holdfast.dev/restore=true" in refused.err
    assert "enable_experimental_restore_via_create = true" in refused.err

    image = f"{save.registry.host}/{REPOSITORY}@{built['digest']}"
    container = {**python_container("trainer", COUNTING), "image": image}
    own: dict[str, Any] = {"imagePullSecrets": [{"name": SECRET}], "automountServiceAccountToken": False}
    await apply(save.lab.plane, save.namespace, pod("onto-n3", container, nodeName="n3", **own))
    images = [RestorableImage(container="trainer", image=image)]

    async def failure() -> CreationFailure | None:
        return creation_failure(msgspec.convert(await pod_of(save.lab.plane, save.namespace, "onto-n3"), Pod), images)

    said = await eventually(failure, lambda seen: seen is not None, what="it can't be created")
    assert said is not None
    assert said.fault is Fault.NODE
    assert said.message == (
        "container trainer can't be created from its checkpoint on n3 (checkpoint restore via CreateContainer is "
        f"disabled by configuration): set {CONTAINERD.switch}"
    )


async def test_no_password_is_in_any_log_event_or_object_that_is_not_a_secret(ready: BackupLab) -> None:
    plane = ready.lab.plane
    events = await kubectl(plane, "get", "events", "-A", "-o", "json")
    backups = await kubectl(plane, "get", "cb", "-A", "-o", "json")
    logs = [await agent_log(ready.lab, node) for node in ("n1", "n2", "n3")]
    said = ready.operator.log.read_text()
    assert not [text for text in (events, backups, said, *logs) if PASSWORD in text]
