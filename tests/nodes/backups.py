"""CheckpointBackups on real nodes: the objects, the command, and what a user sees of them."""

import json
import re
from functools import partial
from typing import Any, NamedTuple

import yaml

from tests.cli.lab import Done
from tests.cli.lab import holdfast as run_holdfast
from tests.control_plane.waiting import eventually
from tests.nodes.container_checkpoints import Line
from tests.nodes.lab import Lab
from tests.nodes.operated import ACCOUNT, NAMESPACE
from tests.nodes.registry import SECRET, LabRegistry
from tests.operator.user import kubectl

REPOSITORY = "team/checkpoints"
ENDED = ("Completed", "CompletedPodDeleted", "CompletedWithError", "Failed")
WITHIN_S = 150.0


class Save(NamedTuple):
    """Where backups of one namespace go to."""

    lab: Lab
    registry: LabRegistry
    namespace: str

    async def prepare(self) -> None:
        """The credential, and the right of the operator to read it."""
        await self.registry.provide_secret(self.lab, self.namespace)
        grant = ("--clusterrole=holdfast-secrets", f"--serviceaccount={NAMESPACE}:{ACCOUNT}")
        await kubectl(self.lab.plane, "create", "rolebinding", "holdfast-secrets", "-n", self.namespace, *grant)

    async def create(self, name: str, pod: str, **spec: Any) -> None:
        registry = {"url": self.registry.host, "repository": REPOSITORY, "secretRef": {"name": SECRET}}
        whole = {"schedule": "immediately", "podRef": {"name": pod}, "registry": registry, **spec}
        body = {
            "apiVersion": "migration.dcnlab.com/v1",
            "kind": "CheckpointBackup",
            "metadata": {"name": name},
            "spec": whole,
        }
        await kubectl(self.lab.plane, "apply", "-n", self.namespace, "-f", "-", input=yaml.safe_dump(body))

    async def status(self, name: str) -> dict[str, Any]:
        found = json.loads(await kubectl(self.lab.plane, "get", f"cb/{name}", "-n", self.namespace, "-o", "json"))
        told: dict[str, Any] = found.get("status", {})
        return told

    async def ended(self, name: str, *, run: int = 1) -> dict[str, Any]:
        """The status of the run, or of a later one, when it is over."""
        return await eventually(
            partial(self.status, name),
            lambda seen: seen.get("run", 0) >= run and seen.get("phase") in ENDED,
            what=f"run {run} of {name} is over",
            within_s=WITHIN_S,
        )

    async def completed(self, name: str, *, run: int = 1) -> dict[str, Any]:
        told = await self.ended(name, run=run)
        assert told["phase"] in ENDED[:2], told
        return told

    async def holdfast(self, *arguments: str, stdin: str = "") -> Done:
        kubeconfig = str(self.lab.plane.kubeconfig)
        return await run_holdfast(*arguments, "-n", self.namespace, stdin=stdin, KUBECONFIG=kubeconfig)

    async def restore(self, name: str, *options: str, stdin: str = "") -> str:
        """The name of the new pod, which runs; all that the command said is in the failure otherwise."""
        done = await self.holdfast("restore", name, *options, stdin=stdin)
        assert done.code == 0, done
        found = re.search(r"^pod (\S+) goes on from run \d+ on \S+$", done.out, re.MULTILINE)
        assert found, done
        return found[1]


class TimedLine(NamedTuple):
    at: str
    line: Line


async def timed_lines(lab: Lab, namespace: str, pod: str, container: str = "trainer") -> list[TimedLine]:
    """What a counting container printed, with the times: a restored one begins with the log of the old."""
    text = await kubectl(lab.plane, "logs", pod, "-n", namespace, "-c", container, "--timestamps")
    found = re.findall(r"^(\S+) (\w{16}) (\d+) (\d+) (\S+)\n", text, re.MULTILINE)
    return [TimedLine(at, Line(who, int(step), int(total), host)) for at, who, step, total, host in found]


async def goes_on(save: Save, pod: str, before: list[Line], container: str = "trainer") -> None:
    """The restored container has the identity of the old one, and its steps follow the saved one.

    before: what it had printed when the backup was asked for. What it printed while its log was copied is repeated.
    """
    started = await _started(save, pod, container)

    async def printed() -> tuple[list[Line], list[Line]]:
        lines = await timed_lines(save.lab, save.namespace, pod, container)
        is_new = [each.at[: len(started)] >= started for each in lines]
        old = [each.line for each, new in zip(lines, is_new, strict=True) if not new]
        return old, [each.line for each, new in zip(lines, is_new, strict=True) if new]

    old, new = await eventually(printed, lambda seen: len(seen[1]) > 10, what=f"{pod} counts on")
    assert {line.identity for line in (*old, *new)} == {before[0].identity}
    saved = new[0].step - 1
    assert before[-1].step <= saved <= old[-1].step, (before[-1], old[-1], new[0])
    assert [line.step for line in new] == list(range(saved + 1, saved + 1 + len(new))), "no gap, no repeat"
    assert all(line.total == line.step * (line.step + 1) // 2 for line in new)


async def _started(save: Save, pod: str, container: str) -> str:
    """The second in which the container was restored: lines before are those of the old one."""
    found = json.loads(await kubectl(save.lab.plane, "get", f"pod/{pod}", "-n", save.namespace, "-o", "json"))
    (status,) = [each for each in found["status"]["containerStatuses"] if each["name"] == container]
    return str(status["state"]["running"]["startedAt"]).removesuffix("Z")
