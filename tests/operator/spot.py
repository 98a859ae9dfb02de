"""SpotInstanceJobs on the real API server: the operator is a process, its machines are light ones, kwok runs the pods.

The machines are on loopback addresses, where their SSH servers listen on port 22 as all machines do.
"""

import base64
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from msgspec import structs

from holdfast.cluster.errors import AlreadyExists
from holdfast.cluster.kubernetes.client import connect
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.machines.join_credentials import ca_cert_hash
from holdfast.providers.gcp.endpoint import ENVIRONMENT
from holdfast.runtime.process import utc_now
from tests.control_plane.api import JSON
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually
from tests.machines import cluster_info
from tests.machines.attached import AttachedMachines
from tests.machines.light_machine import FIRST_ADDRESS, light_machines
from tests.operator.deployed import OPERATOR, operator_login
from tests.operator.process import OperatorProcess
from tests.operator.user import kubectl
from tests.providers.compute_engine.double import ComputeEngine
from tests.providers.compute_engine.machine import QUICK, FakeMachine
from tests.providers.compute_engine.server import serving

MANIFESTS = Path(__file__).parents[1] / "fixtures" / "manifests"
JOB, HOST = "my-training-job", "gcr.io"
SECRET, SECRET_NAMESPACE = "gcp-credentials", "default"
SSH_PORT = 22
# Longer than an operator takes to start: it finds what the one before has asked for still under way.
PACE = structs.replace(QUICK, insert_s=5.0, delete_s=5.0)
StartOperator = Callable[..., OperatorProcess]
WITHIN_S = 150.0


def obstacle() -> str:
    """Why machines can't be logged in to where the operator expects it; empty when they can."""
    try:
        with socket.create_server((str(FIRST_ADDRESS), SSH_PORT)):
            return ""
    except OSError as error:
        return f"machines of the operator's own listen on port {SSH_PORT} of loopback addresses: {error.strerror}"


def manifest(name: str, host: str) -> str:
    """A fixture as users have it, but that its images go to another registry."""
    return (MANIFESTS / f"{name}.yaml").read_text().replace(HOST, host)


class SpotStory:
    """What a user does and sees, and what Google does."""

    def __init__(
        self, plane: ControlPlane, namespace: str, cloud: ComputeEngine, registry: str, endpoint: str = ""
    ) -> None:
        self.plane = plane
        self.namespace = namespace
        self.cloud = cloud
        self.registry = registry
        self._endpoint = endpoint

    def start(self, start_operator: StartOperator, *options: str) -> OperatorProcess:
        return start_operator(
            self.plane,
            f"--namespace={self.namespace}",
            f"--lease-namespace={OPERATOR}",
            "--reports-address=127.0.0.1",
            "--reports-port=0",
            f"--plain-http-registry={self.registry}",
            *options,
            kubeconfig=operator_login(self.plane),
            environment={ENVIRONMENT: self._endpoint},
        )

    # What the user does.

    async def allow(self) -> None:
        """The Secret that the job names is in another namespace: its owner, and the administrator, allow it."""
        key_file = self.cloud.add_account().key_file()
        metadata = {
            "name": SECRET,
            "namespace": SECRET_NAMESPACE,
            "annotations": {"holdfast.dev/allow-namespaces": self.namespace},
        }
        data = {"credentials.json": base64.b64encode(key_file).decode()}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
        await kubectl(self.plane, "apply", "-f", "-", input=json.dumps(body))
        grant = ("--clusterrole=holdfast-secrets", f"--serviceaccount={OPERATOR}:holdfast-operator")
        await kubectl(self.plane, "create", "rolebinding", "holdfast-secrets", "-n", SECRET_NAMESPACE, *grant)

    async def disallow(self) -> None:
        for what in (f"secret/{SECRET}", "rolebinding/holdfast-secrets"):
            await kubectl(self.plane, "delete", what, "-n", SECRET_NAMESPACE, "--ignore-not-found")

    async def submit(self) -> None:
        for name in ("spotinstancevm", "spotinstancejob"):
            text = manifest(name, self.registry)
            await kubectl(self.plane, "apply", "-n", self.namespace, "-f", "-", input=text)

    async def end(self, replica: int) -> None:
        """The training of a replica is done."""
        (pod,) = await self.running(replica)
        await self.plane.pods.end(self.namespace, pod["metadata"]["name"])

    # What there is.

    async def get(self, *what: str, namespace: str = "") -> JSON:
        text = await kubectl(self.plane, "get", *what, "-n", namespace or self.namespace, "-o", "json")
        found: JSON = json.loads(text)
        return found

    async def status(self) -> JSON:
        found: JSON = (await self.get(f"spotinstancejob/{JOB}")).get("status", {})
        return found

    async def until_status(self, enough: Any, what: str) -> JSON:
        return await eventually(self.status, enough, what=what, within_s=WITHIN_S)

    async def until_phase(self, phase: str) -> JSON:
        return await self.until_status(lambda seen: seen.get("phase") == phase, f"the job is {phase}")

    async def until_attempts(self, attempt: int) -> JSON:
        """That attempt of each replica runs."""
        return await self.until_status(
            lambda seen: all((each["attempt"], each["phase"]) == (attempt, "Running") for each in seen["jobStatuses"]),
            f"attempt {attempt} of each replica runs",
        )

    async def running(self, replica: int) -> list[JSON]:
        selector = f"holdfast.dev/spot-job={JOB},holdfast.dev/replica={replica}"
        pods = (await self.get("pods", "-l", selector, "--field-selector=status.phase=Running"))["items"]
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    async def machine_of(self, replica: int) -> FakeMachine:
        """The one that the replica runs on."""
        (pod,) = await eventually(partial(self.running, replica), lambda seen: len(seen) == 1, what="it runs")
        return self.cloud.machine(pod["spec"]["nodeName"])

    async def nodes(self) -> list[str]:
        listing = await self.get("nodes", "-l", "holdfast.dev/spot=true")
        return [each["metadata"]["name"] for each in listing["items"]]

    async def tokens(self) -> list[str]:
        fields = "--field-selector=type=bootstrap.kubernetes.io/token"
        listing = await self.get("secrets", fields, namespace="kube-system")
        return [each["metadata"]["name"] for each in listing["items"]]

    async def left_over(self) -> list[str]:
        """Of all that costs something, or was made for machines."""
        orders = (await self.get("provisionedinstances"))["items"]
        backups = (await self.get("checkpointbackups"))["items"]
        under_way = [each for each in backups if "completionTime" not in each.get("status", {})]
        objects = [f"{each['kind']} {each['metadata']['name']}" for each in (*orders, *under_way)]
        return [
            *(str(each) for each in self.cloud.machines.values()),
            *await self.nodes(),
            *objects,
            *await self.tokens(),
        ]

    async def until_nothing_is_left(self) -> None:
        await eventually(self.left_over, lambda seen: not seen, what="nothing is left", within_s=WITHIN_S)


@asynccontextmanager
async def spot_story(plane: ControlPlane, namespace: str, registry: str) -> AsyncIterator[SpotStory]:
    admin = connect(load_config(str(plane.kubeconfig), environ={}), rng=Random(), now=utc_now)
    authority = cluster_info.authority()
    with suppress(AlreadyExists):
        await cluster_info.publish(admin, authority)
    async with light_machines(admin, now=utc_now, port=SSH_PORT) as machines:
        cloud = ComputeEngine(now=utc_now, pace=PACE, addresses=lambda number: (machines.address(), ""))
        AttachedMachines(cloud, admin, machines, ca_cert_hashes=(ca_cert_hash(authority),))
        async with serving(cloud) as endpoint:
            story = SpotStory(plane, namespace, cloud, registry, endpoint)
            await story.allow()
            try:
                yield story
            finally:
                await story.disallow()
                await kubectl(plane, "delete", "configmap/cluster-info", "-n", "kube-public")
                await cloud.close()
    await admin.close()
