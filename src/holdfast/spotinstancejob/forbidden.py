"""What the operator refuses to make pods with, whoever asks for it in a job's template. Pure."""

from collections.abc import Iterator
from typing import Any

from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.pods.template import ForbiddenFeature
from holdfast.spotinstancejob.template import pod_template

# A template has all fields of a pod: what gives as much as the field that the option is named after counts as that.
_OF_THE_NODE = {"hostNetwork": "the node's network", "hostPID": "the node's processes", "hostIPC": "the node's memory"}


def refusal(job: SpotInstanceJob, forbidden: frozenset[ForbiddenFeature]) -> str:
    """Why this operator makes no pods for the job; empty if it does."""
    requested = [(which, what) for which, what in _requested(pod_template(job)["spec"]) if which in forbidden]
    if not requested:
        return ""
    which = " ".join(f"--forbid {one}" for one in dict.fromkeys(which for which, _ in requested))
    what = " and ".join(what for _, what in requested)
    return f"spec.jobTemplate asks for {what}, which the operator forbids ({which}): leave it out"


def mode_refusal(job: SpotInstanceJob, *, runs_containers: bool) -> str:
    """Why replicas can't be saved as the job asks for; empty if they can."""
    if runs_containers or job.spec.checkpoint_config.mode != "container":
        return ""
    return (
        "spec.checkpointConfig.mode is container, and on one machine no containers are run: leave it out, and let the "
        "training save to CHECKPOINT_DIR"
    )


def node_refusal(job: SpotInstanceJob) -> str:
    """Why replicas can't run where the template puts them; empty if it leaves that to the operator."""
    node = pod_template(job)["spec"].get("nodeName")
    if not node:
        return ""
    return (
        f"spec.jobTemplate names a node (nodeName: {node}), and each replica runs on a node of its own, which the "
        "operator chooses: leave nodeName out; a nodeSelector says which nodes will do"
    )


def _requested(spec: dict[str, Any]) -> Iterator[tuple[ForbiddenFeature, str]]:
    for volume in spec.get("volumes") or ():
        if volume.get("hostPath") is not None:
            yield ForbiddenFeature.HOST_PATH, f"a path of the node (volume {volume.get('name')})"
        sources = (volume.get("projected") or {}).get("sources") or ()
        if any(each.get("serviceAccountToken") is not None for each in sources):
            yield (
                ForbiddenFeature.SERVICE_ACCOUNT_TOKEN,
                f"a token of its service account (volume {volume.get('name')})",
            )
    for field, what in _OF_THE_NODE.items():
        if spec.get(field):
            yield ForbiddenFeature.HOST_NETWORK, what
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        if _may_be_root(container.get("securityContext") or {}, spec.get("securityContext") or {}):
            yield (
                ForbiddenFeature.ROOT,
                f"leave to run as root (container {container.get('name')}, without runAsNonRoot: true)",
            )
    if spec.get("automountServiceAccountToken") is not False:
        yield (
            ForbiddenFeature.SERVICE_ACCOUNT_TOKEN,
            "a token of its service account (without automountServiceAccountToken: false)",
        )
    if account := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        yield ForbiddenFeature.SERVICE_ACCOUNT_NAME, f"the service account {account}"


def _may_be_root(own: dict[str, Any], of_pod: dict[str, Any]) -> bool:
    """Where nothing is written, the image decides."""
    user, non_root = (own.get(field, of_pod.get(field)) for field in ("runAsUser", "runAsNonRoot"))
    return bool(own.get("privileged")) or user == 0 or (user is None and non_root is not True)
