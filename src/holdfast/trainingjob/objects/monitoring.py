"""How Prometheus finds a job's metrics: by annotations on the pods, or by a ServiceMonitor."""

from typing import Any

from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_blocks import Monitoring
from holdfast.trainingjob.objects import names

METRICS_PATH = "/metrics"
METRICS_PORT = "metrics"


def enabled_monitoring(job: TrainingJob) -> Monitoring | None:
    """The job's monitoring settings; None when monitoring is off."""
    monitoring = job.spec.monitoring
    return monitoring if monitoring is not None and monitoring.enabled else None


def scrape_annotations(job: TrainingJob) -> dict[str, str]:
    monitoring = enabled_monitoring(job)
    if monitoring is None:
        return {}
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(monitoring.metrics_port),
        "prometheus.io/path": METRICS_PATH,
    }


def service_monitor(job: TrainingJob) -> dict[str, Any] | None:
    """Scrapes worker 0 through the master Service, the only Service with a metrics port; None without monitoring."""
    if enabled_monitoring(job) is None:
        return None
    return {
        "metadata": names.metadata(job, names.master_service_name(job)),
        "spec": {
            "selector": {"matchLabels": names.job_labels(job)},
            "endpoints": [{"port": METRICS_PORT, "path": METRICS_PATH}],
        },
    }
