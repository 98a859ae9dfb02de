"""`holdfast node` as a process: a preemption notice reaches the Node of a cluster."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import AlreadyExists
from holdfast.cluster.resources import EVENTS, NODES
from holdfast.pods.failure import PREEMPTED, has_preemption_notice
from tests.cli.lab import CommandLab, interrupted, spawn, surroundings
from tests.control_plane.waiting import eventually
from tests.node.notice.clouds import DOUBLES, MetadataDouble, serving


async def _own_node(lab: CommandLab) -> str:
    name = await lab.node()
    with suppress(AlreadyExists):  # the control plane's fake node
        await lab.cluster.create(NODES, {"metadata": {"name": name}})
    return name


async def _started(lab: CommandLab, node: str, folder: Path, address: str) -> asyncio.subprocess.Process:
    paths = ("--checkpoints-folder", str(folder), "--journal-folder", str(folder / "journal"))
    arguments = ("node", "--node-name", node, *paths, "--metrics-port", "0", "--metadata-server", address)
    return await spawn(*arguments, environment={**surroundings(), "KUBECONFIG": str(lab.kubeconfig)})


@pytest.mark.parametrize("make", DOUBLES, ids=lambda make: make.cloud)
async def test_a_notice_marks_the_node_and_its_withdrawal_clears_it(
    lab: CommandLab, tmp_path: Path, make: Callable[[], MetadataDouble]
) -> None:
    node_name, double = await _own_node(lab), make()

    async def is_marked() -> bool:
        node = await lab.cluster.get(NODES, Key("", node_name))
        is_tainted = any(taint.key == PREEMPTED for taint in node.spec.taints)
        return has_preemption_notice(node) and is_tainted

    async def reasons() -> list[str]:
        found = await lab.cluster.list(EVENTS, namespace="default", fields=f"involvedObject.name={node_name}")
        return sorted(event.reason for event in found.items if event.reason.endswith(("Notice", "Withdrawn")))

    async with serving(double) as address:
        process = await _started(lab, node_name, tmp_path, address)
        double.preempt(datetime.now(UTC) + timedelta(seconds=30))
        await eventually(is_marked, lambda marked: marked, what="the node is marked")
        await eventually(reasons, lambda seen: seen == ["PreemptionNotice"], what="the event is there")
        double.withdraw()
        await eventually(is_marked, lambda marked: not marked, what="the mark is taken away")
        await eventually(reasons, lambda seen: len(seen) == 2, what="that is an event, too")
        done = await interrupted(process)
        assert done.code == 0, done
        assert "Traceback" not in done.err
