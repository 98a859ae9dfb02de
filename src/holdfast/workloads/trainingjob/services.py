"""The two Services of a TrainingJob: names for all workers, and a door to worker 0."""

from typing import Any

from holdfast.api.trainingjob import TrainingJob
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.monitor import METRICS_PORT, enabled_monitoring
from holdfast.workloads.trainingjob.networking import master_port


def headless_service(job: TrainingJob) -> dict[str, Any]:
    """Resolves workers before they are ready: they look for each other in order to become so."""
    return {
        "metadata": names.metadata(job, names.headless_service_name(job)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.JOB_LABEL: job.metadata.name},
            "ports": [_port("master", master_port(job))],
        },
    }


def master_service(job: TrainingJob) -> dict[str, Any]:
    """Worker 0 of the current attempt: the meeting point, and its metrics when they are on."""
    ports = [_port("master", master_port(job))]
    watched = enabled_monitoring(job)
    if watched is not None:
        ports.append(_port(METRICS_PORT, watched.metrics_port))
    selector = {names.JOB_NAME_LABEL: names.job_name(job), names.INDEX_LABEL: "0"}
    return {
        "metadata": names.metadata(job, names.master_service_name(job)),
        "spec": {"selector": selector, "ports": ports},
    }


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}
