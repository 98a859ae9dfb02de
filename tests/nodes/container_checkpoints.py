"""Containers that are saved in tests: a program that counts in memory only, and what it logged."""

import re
from typing import Any, NamedTuple

from tests.nodes.images import HOLDFAST
from tests.nodes.lab import Lab
from tests.nodes.manifests import pod
from tests.nodes.user import log_of

# Keeps a random id and a step count in memory only; the sum is wrong when a step is missing or done twice.
COUNTING = """\
import os, secrets, time
import numpy

identity, step, total = secrets.token_hex(8), 0, numpy.zeros(100_000)
while True:
    step += 1
    total += step
    print(identity, step, int(total[0]), os.uname().nodename, flush=True)
    time.sleep(0.05)
"""
# As our pods are restricted.
RESTRICTED = {
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}


class Line(NamedTuple):
    """What the counting program prints at each step."""

    identity: str
    step: int
    total: int
    hostname: str


def python_container(name: str, program: str, **more: Any) -> dict[str, Any]:
    command = ["python", "-c", program]
    return {"name": name, "image": HOLDFAST, "command": command, "securityContext": RESTRICTED, **more}


def counting_pod(name: str, node: str, **spec: Any) -> str:
    container = python_container("trainer", COUNTING)
    return pod(name, container, nodeName=node, automountServiceAccountToken=False, **spec)


async def lines_of(lab: Lab, namespace: str, name: str, container: str = "trainer") -> list[Line]:
    """All that a counting container has printed, without the line that is not yet whole."""
    text = await log_of(lab.plane, namespace, name, container)
    found = re.findall(r"^(\w{16}) (\d+) (\d+) (\S+)\n", text, re.MULTILINE)
    return [Line(identity, int(step), int(total), hostname) for identity, step, total, hostname in found]
