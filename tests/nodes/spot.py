"""SpotInstanceJobs on real machines: the double of Compute Engine makes computers of a lab, and takes them back."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from holdfast.providers.gcp.endpoint import ENVIRONMENT
from holdfast.runtime.process import utc_now
from tests.control_plane.waiting import eventually
from tests.nodes.agents import install_agents
from tests.nodes.attached import AttachedComputers, addresses_in
from tests.nodes.backup_lab import AGENTS
from tests.nodes.backups import REPOSITORY, Save
from tests.nodes.container_checkpoints import Line, lines_of, python_container
from tests.nodes.lab import Lab
from tests.nodes.manifests import RESTRICTED
from tests.nodes.operated import operator
from tests.nodes.registry import SECRET, LabRegistry, registry_with_passwords
from tests.operator.process import OperatorProcess
from tests.operator.spot import JOB, SpotStory
from tests.operator.user import kubectl
from tests.providers.compute_engine.double import ComputeEngine
from tests.providers.compute_engine.machine import QUICK
from tests.providers.compute_engine.server import serving

CREDENTIALS, TEMPLATE = "gcp-credentials", "t4"
# Keeps a random id and a step count in memory only, and ends when it is told to: it knows nothing of checkpoints.
TRAINING = """\
import os, secrets, signal, time
import numpy

identity, step, total, told = secrets.token_hex(8), 0, numpy.zeros(100_000), []
signal.signal(signal.SIGUSR1, lambda *_: told.append(True))
while not told:
    step += 1
    total += step
    print(identity, step, int(total[0]), os.uname().nodename, flush=True)
    time.sleep(0.05)
"""


class SpotLab:
    """A lab whose operator has machines, and a registry for what is saved on them."""

    def __init__(
        self, lab: Lab, namespace: str, cloud: ComputeEngine, registry: LabRegistry, process: OperatorProcess
    ) -> None:
        self.lab = lab
        self.namespace = namespace
        self.cloud = cloud
        self.registry = registry
        self.process = process
        self.save = Save(lab, registry, namespace)
        self.story = SpotStory(lab.plane, namespace, cloud, registry.host)

    async def prepare(self) -> None:
        """The Secrets, and the right of the operator to read them."""
        await self.save.prepare()
        key_file = self.cloud.add_account().key_file().decode()
        await self._apply("v1", "Secret", CREDENTIALS, stringData={"credentials.json": key_file})

    async def submit(self, interval: str) -> None:
        machines = {
            "vmImage": "projects/debian-cloud/global/images/family/debian-12",
            "gpu": {"type": "nvidia-tesla-t4", "count": 1},
            "gcp": {"project": "my-gcp-project", "zone": "us-central1-a", "machineType": "n1-standard-4"},
        }
        training = python_container("training", TRAINING, resources={"limits": {"nvidia.com/gpu": 1}})
        pod = {"securityContext": RESTRICTED, "automountServiceAccountToken": False, "containers": [training]}
        job = {
            "replicas": 2,
            "spotInstanceVMRef": {"name": TEMPLATE},
            "gcpCredentialsSecretRef": {"name": CREDENTIALS},
            "checkpointConfig": {
                "checkpointImageRepo": f"{self.registry.host}/{REPOSITORY}",
                "checkpointRepoCredentialRef": {"name": SECRET},
                "checkpointInterval": interval,
                "mode": "container",
            },
            "jobTemplate": {"spec": {"template": {"spec": {**pod, "terminationGracePeriodSeconds": 1}}}},
        }
        version = "training.training.dcnlab.com/v1alpha1"
        await self._apply(version, "SpotInstanceVM", TEMPLATE, spec=machines)
        await self._apply(version, "SpotInstanceJob", JOB, spec=job)

    async def pod_of(self, replica: int, attempt: int = 0) -> str:
        """The name of its pod, which runs."""
        selector = f"holdfast.dev/spot-job={JOB},holdfast.dev/replica={replica},holdfast.dev/attempt={attempt}"
        listing = partial(self.story.get, "pods", "-l", selector, "--field-selector=status.phase=Running")
        found = await eventually(
            listing, lambda seen: seen["items"], what=f"attempt {attempt} of replica {replica} runs", within_s=240
        )
        name: str = found["items"][0]["metadata"]["name"]
        return name

    async def lines(self, pod: str) -> list[Line]:
        """What it has printed, once that is something."""
        look = partial(lines_of, self.lab, self.namespace, pod, "training")
        return await eventually(look, lambda lines: len(lines) > 5, what=f"{pod} counts")

    async def tell_to_end(self, pod: str) -> None:
        await kubectl(self.lab.plane, "exec", pod, "-n", self.namespace, "--", "sh", "-c", "kill -USR1 1")

    async def newest_tag(self) -> str:
        """In the registry."""
        async with self.registry.client() as client:
            tags = await client.tags(REPOSITORY)
        return max(tags, key=lambda tag: tag.rsplit("-", 2)[-2:])

    async def _apply(self, version: str, kind: str, name: str, **content: Any) -> None:
        body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **content}
        await kubectl(self.lab.plane, "apply", "-n", self.namespace, "-f", "-", input=json.dumps(body))


@asynccontextmanager
async def spot_lab(lab: Lab, namespace: str) -> AsyncIterator[SpotLab]:
    cloud = ComputeEngine(now=utc_now, pace=QUICK, addresses=addresses_in(lab))
    attached = AttachedComputers(cloud, lab)
    options = f"--node-service-account={AGENTS}"
    async with serving(cloud) as endpoint:
        with (
            registry_with_passwords(lab) as registry,
            operator(lab, options, environment={ENVIRONMENT: endpoint}) as it,
        ):
            await install_agents(lab)
            found = SpotLab(lab, namespace, cloud, registry, it)
            await found.prepare()
            try:
                yield found
            finally:
                await attached.close()
                await cloud.close()
