"""The pod template of a worker."""

from typing import Any

import msgspec

from holdfast.api.trainingjob import PodTemplate, TrainingJob
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.container import restore, trainer
from holdfast.workloads.trainingjob.defaults import Defaults
from holdfast.workloads.trainingjob.monitor import scrape_annotations
from holdfast.workloads.trainingjob.scheduling import scheduling
from holdfast.workloads.trainingjob.security import pod_security
from holdfast.workloads.trainingjob.volumes import volumes


def pod_template(job: TrainingJob, defaults: Defaults) -> dict[str, Any]:
    overlay = job.spec.pod_template or PodTemplate()
    metadata: dict[str, Any] = {"labels": {**overlay.labels, **names.labels(job)}}
    annotations = {**scrape_annotations(job), **overlay.annotations}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": _pod_spec(job, overlay, defaults)}


def _pod_spec(job: TrainingJob, overlay: PodTemplate, defaults: Defaults) -> dict[str, Any]:
    first = restore(job, defaults)
    return {
        "restartPolicy": "Never",
        "subdomain": names.headless(job),
        "serviceAccountName": names.service_account(job),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(job),
        **({"initContainers": [first]} if first else {}),
        "containers": [trainer(job, defaults)],
        "volumes": volumes(job),
        **_optional(overlay),
        **scheduling(job),
    }


def _optional(overlay: PodTemplate) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if overlay.image_pull_secrets:
        fields["imagePullSecrets"] = msgspec.to_builtins(overlay.image_pull_secrets)
    if overlay.host_network:
        # With the node's own resolver no worker would find another by its name.
        fields |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if overlay.termination_grace_period_seconds is not None:
        fields["terminationGracePeriodSeconds"] = overlay.termination_grace_period_seconds
    return fields
