"""TrainingJobs of two workers on a cluster of this machine alone."""

from pathlib import Path

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import PODS, TRAINING_JOBS
from holdfast.local.up import LocalCluster
from tests.control_plane.waiting import eventually

NAMESPACE = "default"
ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
# Importing a framework twice on a busy machine takes its time.
WITHIN_S = 240.0


async def start(box: LocalCluster, name: str, *, framework: str, command: list[str], port: int, **spec: object) -> None:
    body: JSON = {
        "metadata": {"name": name},
        "spec": {
            "model": "none",
            "dataset": "none",
            "framework": framework,
            "numWorkers": 2,
            "gpusPerWorker": 0,
            "command": command,
            "networking": {"masterPort": port},
            "failurePolicy": {"backoffLimit": 0},
            **spec,
        },
    }
    await box.cluster.create(TRAINING_JOBS, body, namespace=NAMESPACE)


async def completed(box: LocalCluster, name: str, namespace: str = NAMESPACE) -> TrainingJob:
    """The job as it has ended; any other end than a good one fails with what its workers have said."""

    async def look() -> TrainingJob:
        return await box.cluster.get(TRAINING_JOBS, Key(namespace, name))

    job = await eventually(look, _ended, what=f"{name} has ended", within_s=WITHIN_S)
    assert job.status is not None
    if job.status.state != "Completed":
        raise AssertionError("\n".join([str(job.status.failure_reason), *await logs(box, name, namespace)]))
    return job


async def logs(box: LocalCluster, name: str, namespace: str = NAMESPACE, *, container: str = "") -> list[str]:
    """What each worker of the last attempt has said, in order."""
    pods = (await box.cluster.list(PODS, namespace=namespace, labels=f"training-job={name}")).items
    read = [await box.cluster.pod_log(pod.metadata.key, container=container) for pod in sorted(pods, key=_index)]
    return [log.decode() for log in read]


async def said(
    box: LocalCluster, name: str, *, framework: str, command: list[str], port: int, **spec: object
) -> list[str]:
    """Run a job to its end; the last line of each worker, in order."""
    await start(box, name, framework=framework, command=command, port=port, **spec)
    await completed(box, name)
    return [log.splitlines()[-1] for log in await logs(box, name)]


def _ended(job: TrainingJob) -> bool:
    return job.status is not None and job.status.state in ("Completed", "Failed")


def _index(pod: Pod) -> int:
    return int(pod.metadata.labels["batch.kubernetes.io/job-completion-index"])
