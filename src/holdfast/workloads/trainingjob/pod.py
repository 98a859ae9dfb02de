"""The pod template of a worker."""

from typing import Any

import msgspec

from holdfast.api.trainingjob import PodTemplate, TrainingJob
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.container import trainer
from holdfast.workloads.trainingjob.defaults import Defaults
from holdfast.workloads.trainingjob.monitor import scrape_annotations
from holdfast.workloads.trainingjob.scheduling import scheduling
from holdfast.workloads.trainingjob.security import pod_security
from holdfast.workloads.trainingjob.sidecar import GRACE_S, grace_s
from holdfast.workloads.trainingjob.sidecar_container import sidecar, sidecar_volumes
from holdfast.workloads.trainingjob.volumes import volumes


def pod_template(job: TrainingJob, defaults: Defaults) -> dict[str, Any]:
    overlay = job.spec.pod_template or PodTemplate()
    metadata: dict[str, Any] = {"labels": {**overlay.labels, **names.labels(job)}}
    annotations = {**scrape_annotations(job), **overlay.annotations}
    if annotations:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": _pod_spec(job, overlay, defaults)}


def _pod_spec(job: TrainingJob, overlay: PodTemplate, defaults: Defaults) -> dict[str, Any]:
    beside = sidecar(job, defaults)
    return {
        "restartPolicy": "Never",
        "subdomain": names.headless_service_name(job),
        "serviceAccountName": names.service_account(job),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(job),
        **({"initContainers": [beside]} if beside else {}),
        "containers": [trainer(job, defaults)],
        "volumes": [*volumes(job), *sidecar_volumes(job)],
        **_optional(job, overlay),
        **scheduling(job),
    }


def _optional(job: TrainingJob, overlay: PodTemplate) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if overlay.image_pull_secrets:
        fields["imagePullSecrets"] = msgspec.to_builtins(overlay.image_pull_secrets)
    if overlay.host_network:
        # With the node's own resolver no worker would find another by its name.
        fields |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if grace_s(job) != GRACE_S:
        fields["terminationGracePeriodSeconds"] = grace_s(job)
    return fields
