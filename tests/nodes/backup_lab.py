"""A lab with all that backups need: an operator, agents, and two registries. n3 does not restore."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import NamedTuple

from holdfast.pods.restore.nodes import RESTORE_LABEL
from tests.control_plane.waiting import eventually
from tests.nodes.agents import install_agents
from tests.nodes.backups import Save
from tests.nodes.container_checkpoints import Line, lines_of
from tests.nodes.lab import NODES, Lab
from tests.nodes.operated import operator
from tests.nodes.registry import LabRegistry, registry_with_passwords, registry_with_tokens
from tests.nodes.settings import QUICK, NodeSetup
from tests.nodes.user import until_phase
from tests.operator.process import OperatorProcess
from tests.operator.user import apply, kubectl

AGENTS = "system:serviceaccount:holdfast-node:holdfast-node"


class BackupLab(NamedTuple):
    """A lab with all that backups need. n3 does not restore."""

    lab: Lab
    operator: OperatorProcess
    passwords: LabRegistry
    tokens: LabRegistry


@contextmanager
def restoring_lab() -> Iterator[Lab]:
    """Three nodes, of which the last does not restore; containers that end are started again at once."""
    soon = {"crashLoopBackOff": {"maxContainerRestartPeriod": "1s"}}
    setups = {node: NodeSetup(restore=node != "n3", kubelet=soon) for node in NODES}
    with Lab(pace=QUICK, setups=setups).running() as lab:
        yield lab


@asynccontextmanager
async def backing_up(lab: Lab) -> AsyncIterator[BackupLab]:
    with ExitStack() as ending:
        passwords = ending.enter_context(registry_with_passwords(lab))
        tokens = ending.enter_context(registry_with_tokens(lab))
        process = ending.enter_context(operator(lab, f"--node-service-account={AGENTS}"))
        await install_agents(lab)
        for node in ("n1", "n2"):
            await kubectl(lab.plane, "label", "node", node, f"{RESTORE_LABEL}=true")
        yield BackupLab(lab, process, passwords, tokens)


async def counts(save: Save, name: str, manifest: str, *containers: str) -> list[list[Line]]:
    """Start it, and return what its containers have printed when each has counted a few steps."""
    await apply(save.lab.plane, save.namespace, manifest)
    await until_phase(save.lab.plane, save.namespace, name, "Running")
    return [await _has_counted(save, name, container) for container in containers or ("trainer",)]


async def _has_counted(save: Save, name: str, container: str) -> list[Line]:
    look = partial(lines_of, save.lab, save.namespace, name, container)
    return await eventually(look, lambda lines: len(lines) > 5, what=f"{name} counts")
