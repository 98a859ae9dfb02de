"""Workers that do not start: their pods, and the Events about them, as the cluster's components write them.

Put together after the message formats of Kubernetes 1.36 and containerd 2, not taken from a running node.
"""

from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import Struct
from msgspec.structs import replace

from holdfast.api.core.objects import Job, Pod
from tests.trainingjobs import workers

SCENES = Path(__file__).parent / "fixtures" / "pods"


class Recorded(Struct, frozen=True, kw_only=True):
    """Fixture files are decoded into this: what is seen of how many workers, and what their user is to be told."""

    says: str
    workers: int
    pods: tuple[dict[str, Any], ...] = ()
    events: tuple[dict[str, Any], ...] = ()
    """Core Events without metadata; `about` is the name of a pod, or job."""

    def seen(self, namespace: str) -> tuple[Job, tuple[Pod, ...]]:
        """The workers' Job and their pods."""
        job = workers()
        job = replace(
            job,
            metadata=replace(job.metadata, namespace=namespace),
            spec=replace(job.spec, parallelism=self.workers),
        )
        pods = ({**pod, "metadata": {**pod["metadata"], "namespace": namespace}} for pod in self.pods)
        return job, tuple(msgspec.convert(pod, Pod) for pod in pods)

    def bodies(self, namespace: str) -> list[dict[str, Any]]:
        """The Events, to be created in that namespace."""
        job, pods = self.seen(namespace)
        objects: dict[str, Job | Pod] = {"job": job, **{pod.metadata.name: pod for pod in pods}}
        return [_body(event, objects[event["about"]], namespace) for event in self.events]


def _body(event: dict[str, Any], about: Job | Pod, namespace: str) -> dict[str, Any]:
    kind = type(about).__name__
    involved = {"kind": kind, "namespace": namespace, "name": about.metadata.name, "uid": about.metadata.uid}
    told = {name: value for name, value in event.items() if name != "about"}
    if "eventTime" in told:  # the newer API wants to know who and what
        told |= {"reportingComponent": told["source"]["component"], "reportingInstance": "it", "action": "Binding"}
    return {"metadata": {"generateName": "told."}, "involvedObject": involved, **told}


def recorded(name: str) -> Recorded:
    return msgspec.convert(yaml.safe_load((SCENES / f"{name}.yaml").read_text()), Recorded)


def names(*, with_events: bool) -> list[str]:
    every = sorted(path.stem for path in SCENES.glob("*.yaml"))
    return [name for name in every if bool(recorded(name).events) == with_events]
