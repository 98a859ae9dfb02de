"""The Services of a TrainingJob (DNS names for all workers, a name for worker 0), ServiceMonitor and account.

A Service with a selector is the costly one: Kubernetes gives it endpoints, and writes these again with every pod that
comes, starts or goes.
"""

from typing import Any

from holdfast.api.trainingjob import TrainingJob
from holdfast.api.trainingjob_blocks import Monitoring
from holdfast.pods.template import Discovery
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.resources import master_port


def headless_service(job: TrainingJob, discovery: Discovery) -> dict[str, Any]:
    """Resolves workers before they are ready: they must find each other to become ready.

    Where the Service of the namespace does that, this one has nothing behind it.
    """
    selector = {"selector": {names.JOB_LABEL: job.metadata.name}} if discovery == "job" else {}
    return {
        "metadata": names.metadata(job, names.headless_service_name(job)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            **selector,
            "ports": [_port("master", master_port(job))],
        },
    }


def namespace_service(namespace: str) -> dict[str, Any]:
    """The same for the workers of all jobs of a namespace. Nobody owns it: it outlives each of them."""
    return {
        "metadata": {
            "name": names.NAMESPACE_SERVICE,
            "namespace": namespace,
            "labels": names.namespace_service_labels(),
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.discovery_labels("namespace"),
        },
    }


def master_service(job: TrainingJob, discovery: Discovery, cluster_domain: str) -> dict[str, Any]:
    """Worker 0 of the current attempt: another name for its name, which costs Kubernetes nothing.

    With monitoring it is a Service with a selector, which Prometheus and port-forwards need.
    """
    ports = [_port("master", master_port(job))]
    spec: dict[str, Any]
    if (monitoring := enabled_monitoring(job)) is None:
        host = f"{names.worker_host(job, 0, discovery)}.{cluster_domain}"
        spec = {"type": "ExternalName", "externalName": host, "ports": ports}
    else:
        ports.append(_port(METRICS_PORT, monitoring.metrics_port))
        spec = {"selector": {names.JOB_NAME_LABEL: names.job_name(job), names.INDEX_LABEL: "0"}, "ports": ports}
    return {"metadata": names.metadata(job, names.master_service_name(job)), "spec": spec}


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}


# The service account of a job's pods, if the user names none: an identity of their own, without permissions.


def service_account(job: TrainingJob) -> dict[str, Any] | None:
    """None when the user names a service account."""
    if job.spec.pod_template is not None and job.spec.pod_template.service_account_name:
        return None
    return {"metadata": names.metadata(job, names.service_account(job)), "automountServiceAccountToken": False}


# How Prometheus finds a job's metrics: by annotations on the pods, or by a ServiceMonitor.


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
