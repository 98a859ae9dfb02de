"""TrainingJobs of two workers on a cluster of this machine alone."""

from pathlib import Path

from holdfast.api.builtin import Pod
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import PODS, TRAINING_JOBS
from holdfast.local.onebox import Onebox
from tests.control_plane.waiting import eventually

NAMESPACE = "default"
PROGRAMS = Path(__file__).parent / "programs"
# Importing a framework twice on a busy machine takes its time.
WITHIN_S = 240.0


async def said(box: Onebox, name: str, *, framework: str, command: list[str], port: int, **spec: object) -> list[str]:
    """Run a job to its end; the last line of each worker, in order."""
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
    job = await eventually(lambda: _look(box, name), _ended, what=f"{name} has ended", within_s=WITHIN_S)
    logs = await _logs(box, name)
    assert job.status is not None
    assert job.status.state == "Completed", "\n".join([str(job.status.failure_reason), *logs])
    return [log.splitlines()[-1] for log in logs]


async def _look(box: Onebox, name: str) -> TrainingJob:
    return await box.cluster.get(TRAINING_JOBS, Key(NAMESPACE, name))


def _ended(job: TrainingJob) -> bool:
    return job.status is not None and job.status.state in ("Completed", "Failed")


async def _logs(box: Onebox, name: str) -> list[str]:
    pods = (await box.cluster.list(PODS, namespace=NAMESPACE, labels=f"training-job={name}")).items
    return [(await box.cluster.pod_log(pod.metadata.key)).decode() for pod in sorted(pods, key=_index)]


def _index(pod: Pod) -> int:
    return int(pod.metadata.labels["batch.kubernetes.io/job-completion-index"])
