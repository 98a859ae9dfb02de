"""The sidecar beside a training, as pods of all kinds have it: it restores, saves and reports.

Training and sidecar communicate by a shared folder and by ports of the pod. The sidecar and the operator know the
training by the name, uid and attempt of its job.
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from msgspec import Struct

from holdfast.api.meta import ObjectMeta
from holdfast.api.reports import AUDIENCE, SIDECAR_PORT
from holdfast.api.reports import FILE as REPORTS_FILE
from holdfast.pods.template import SIDECAR_CONTAINER, container_security

Variable: TypeAlias = dict[str, Any]
# The resource requests and limits of a container.
Amounts: TypeAlias = dict[str, int | str]
Resources: TypeAlias = dict[str, Amounts]

PORT, PROGRESS_PORT = SIDECAR_PORT, 8471
RUN_VOLUME = "holdfast-run"
RUN_FOLDER = "/holdfast"
RUN_MOUNT = {"name": RUN_VOLUME, "mountPath": RUN_FOLDER, "subPath": "run"}
STATE_FOLDER = "/holdfast-state"
STATE_MOUNT = {"name": RUN_VOLUME, "mountPath": STATE_FOLDER, "subPath": "state"}
# With the file that says where to report.
CONFIG_VOLUME = "holdfast-config"
CONFIG_FOLDER = "/etc/holdfast"
CONFIG_MOUNT = {"name": CONFIG_VOLUME, "mountPath": CONFIG_FOLDER, "readOnly": True}
TOKEN_VOLUME = "holdfast-token"  # noqa: S105  # the name of a volume, not a token
TOKEN_FOLDER = "/var/run/secrets/holdfast"  # noqa: S105
TOKEN_FILE = "token"  # noqa: S105
TOKEN_LIFE_S = 3600
TOKEN_MOUNT = {"name": TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": True}

# Grace periods of a pod: Kubernetes' default, for a save on a volume, for a save that is uploaded.
GRACE_S, SAVING_GRACE_S, UPLOADING_GRACE_S = 30, 90, 180
PROBED_EVERY_S = 5
# A sidecar that crashes and restarts must not cost the training.
PROBES_MISSED = 36
# The probe fails when the attempt is over, or when the training has saved and must end.
STOPPED_WITHIN_S = 5
# Even the largest checkpoint is restored within a week.
STARTED_WITHIN_S = 7 * 24 * 3600

_SIDES = ("requests", "limits")
_REQUESTS: Amounts = {"cpu": "50m", "memory": "128Mi"}
# The sidecar's own ephemeral storage is its log; its folders count for the pod.
_LIMITS: Amounts = {"cpu": "500m", "memory": "256Mi", "ephemeral-storage": "128Mi"}


class SidecarSpec(Struct, frozen=True, kw_only=True):
    """What differs between the sidecars of kinds. Variables and mounts come after those that all have."""

    job: ObjectMeta
    """The object of the user."""
    image: str
    env: tuple[Variable, ...]
    mounts: tuple[dict[str, Any], ...]
    resources: Resources


def sidecar_container(spec: SidecarSpec) -> dict[str, Any]:
    """A native sidecar; the training starts when its startup probe passes."""
    return {
        "name": SIDECAR_CONTAINER,
        "image": spec.image,
        "command": ["holdfast", "sidecar"],
        "restartPolicy": "Always",
        "env": list(spec.env),
        # With hostNetwork, the declared ports keep the scheduler from binding two workers to one node.
        "ports": [{"name": "sidecar", "containerPort": PORT}, {"name": "progress", "containerPort": PROGRESS_PORT}],
        "startupProbe": {
            **probe_handler(spec.job, "started"),
            "periodSeconds": 1,
            "timeoutSeconds": PROBED_EVERY_S,
            "failureThreshold": STARTED_WITHIN_S,
        },
        "resources": spec.resources,
        "securityContext": {**container_security(), "readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": list(spec.mounts),
    }


def token_volume() -> dict[str, Any]:
    """The pod's identity for the operator, which no other container mounts."""
    token = {"audience": AUDIENCE, "expirationSeconds": TOKEN_LIFE_S, "path": TOKEN_FILE}
    return {"name": TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}


def shared_env(job: ObjectMeta) -> Iterator[Variable]:
    """The environment variables of both containers."""
    yield {"name": "HOLDFAST_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    yield {"name": "HOLDFAST_JOB", "value": job.name}
    yield {"name": "HOLDFAST_NAMESPACE", "value": job.namespace}
    yield {"name": "PROGRESS_FILE", "value": f"{RUN_FOLDER}/progress.jsonl"}
    yield {"name": "HOLDFAST_NOTICE_FILE", "value": f"{RUN_FOLDER}/notice"}


def sidecar_env(
    job: ObjectMeta, *, attempt: int, workers: int = 1, is_elastic: bool = False, grace_s: int
) -> Iterator[tuple[str, str]]:
    """The sidecar's own variables, for every kind."""
    yield "HOLDFAST_JOB_UID", job.uid
    yield "HOLDFAST_ATTEMPT", str(attempt)
    yield "HOLDFAST_WORKERS", str(workers)
    if is_elastic:
        yield "HOLDFAST_ELASTIC", "true"
    yield "HOLDFAST_GRACE_SECONDS", str(grace_s)
    yield "HOLDFAST_STATE_DIR", STATE_FOLDER
    yield "HOLDFAST_REPORTS_FILE", f"{CONFIG_FOLDER}/{REPORTS_FILE}"
    yield "HOLDFAST_TOKEN_FILE", f"{TOKEN_FOLDER}/{TOKEN_FILE}"
    yield "TERMINATION_LOG", "/dev/termination-log"


def progress_url(*, shares_loopback: bool) -> tuple[str, str]:
    """Where the training may post its progress: on the loopback, or on the pod's IP if the pod shares its loopback.

    An IPv6 address would need brackets, which the kubelet does not add when it expands the variable.
    """
    host = "$(HOLDFAST_POD_IP)" if shares_loopback else "127.0.0.1"
    return "PROGRESS_URL", f"http://{host}:{PROGRESS_PORT}/progress"


def probe_handler(job: ObjectMeta, name: str) -> dict[str, Any]:
    """A request of the kubelet to the sidecar. Clients that reach the pod without the job's uid are kept out."""
    return {"httpGet": {"path": f"/{job.uid}/{name}", "port": PORT}}


def trainer_probes(job: ObjectMeta) -> dict[str, Any]:
    """How the sidecar stops a training that is over, and learns of a pod's termination before the training does.

    The kubelet signals a native sidecar only after the training has exited, and no container can signal another.
    """
    live = {
        **probe_handler(job, "live"),
        "periodSeconds": PROBED_EVERY_S,
        "timeoutSeconds": PROBED_EVERY_S,
        "failureThreshold": PROBES_MISSED,
        "terminationGracePeriodSeconds": STOPPED_WITHIN_S,
    }
    return {"livenessProbe": live, "lifecycle": {"preStop": probe_handler(job, "prestop")}}


def sidecar_resources(trainers: Resources, *, reserves: bool) -> Resources:
    """Small requests, with limits only where the training's container has limits.

    Without those limits a Guaranteed pod would become Burstable, and a quota that requires limits would reject the pod.
    """
    if not reserves:
        return {}
    requested, limits = (
        {name: amount for name, amount in _LIMITS.items() if name in (trainers.get(side) or {})} for side in _SIDES
    )
    requests = {**requested, **_REQUESTS, **limits}
    return {"requests": requests, "limits": limits} if limits else {"requests": requests}


def plain_variables(values: Iterable[tuple[str, str]]) -> Iterator[Variable]:
    yield from ({"name": name, "value": value} for name, value in values)
