"""Many TrainingJobs at once, and all that was made for them."""

import asyncio
from typing import Any

from tests.chaos.history import History
from tests.control_plane.api import Session
from tests.control_plane.waiting import eventually

JOBS = "/apis/ml.example.com/v1/namespaces/default/trainingjobs"
OURS = "app.kubernetes.io/managed-by=holdfast"
KINDS = {
    "Job": "/apis/batch/v1/namespaces/default/jobs",
    "Deployment": "/apis/apps/v1/namespaces/default/deployments",
    "Pod": "/api/v1/namespaces/default/pods",
    "Service": "/api/v1/namespaces/default/services",
    "ConfigMap": "/api/v1/namespaces/default/configmaps",
    "ServiceAccount": "/api/v1/namespaces/default/serviceaccounts",
}


def manifest(number: int, *, workers: int, gpus: int, run_for: str) -> dict[str, Any]:
    return {
        "apiVersion": "ml.example.com/v1",
        "kind": "TrainingJob",
        "metadata": {"name": f"gang-{number}"},
        "spec": {
            "model": "cnn",
            "dataset": "mnist",
            "numWorkers": workers,
            "gpusPerWorker": gpus,
            "podTemplate": {
                "annotations": {"kwok.holdfast.dev/run-for": run_for, "kwok.holdfast.dev/stop-after": "1s"}
            },
        },
    }


async def submit(session: Session, count: int, *, workers: int, gpus: int, run_for: str) -> None:
    bodies = [manifest(number, workers=workers, gpus=gpus, run_for=run_for) for number in range(count)]
    await asyncio.gather(*(session.request("POST", JOBS, body) for body in bodies))


async def until_completed(history: History, count: int, *, within_s: float) -> None:
    async def unfinished() -> dict[str, str]:
        states = {key.name: job.status.state if job.status else None for key, job in history.jobs.items()}
        return {name: str(state) for name, state in states.items() if state != "Completed"}

    def done(left: dict[str, str]) -> bool:
        return not left and len(history.jobs) == count

    await eventually(unfinished, done, what=f"all {count} jobs Completed", within_s=within_s)


async def belongings(session: Session) -> list[dict[str, Any]]:
    """Every object of ours that is there, each with its kind."""
    found = []
    for kind, path in KINDS.items():
        listing = await session.request("GET", path, labelSelector=OURS)
        found += [{**item, "kind": kind} for item in listing["items"]]
    return found
