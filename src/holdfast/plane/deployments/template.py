"""A Deployment's pod, and which template it was made from."""

import hashlib

import msgspec

from holdfast.cluster.protocol import JSON
from holdfast.plane.objects import DEPLOYMENTS, Deployment, Pod

HASH = "pod-template-hash"


def is_current(pod: Pod, deployment: Deployment) -> bool:
    return pod.metadata.labels.get(HASH) == _hash(deployment)


def pod_body(deployment: Deployment) -> JSON:
    template, own, mark = deployment.spec.template, deployment.metadata, _hash(deployment)
    metadata = template.get("metadata", {})
    identity = {"apiVersion": DEPLOYMENTS.api_version, "kind": DEPLOYMENTS.kind, "name": own.name, "uid": own.uid}
    return {
        "metadata": {
            "generateName": f"{own.name}-{mark}-",
            "labels": {**metadata.get("labels", {}), HASH: mark},
            "annotations": metadata.get("annotations", {}),
            "ownerReferences": [{**identity, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": template.get("spec", {}),
    }


def _hash(deployment: Deployment) -> str:
    return hashlib.sha256(msgspec.json.encode(deployment.spec.template, order="sorted")).hexdigest()[:10]
