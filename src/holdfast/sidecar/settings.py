"""The settings of a sidecar, from environment variables that the operator sets. An empty variable counts as not set."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from holdfast.api.reports import SIDECAR_PORT
from holdfast.checkpoints.retention import Metric
from holdfast.errors import HoldfastError
from holdfast.sidecar.progress import NAMES

Environ: TypeAlias = Mapping[str, str]

PORT = SIDECAR_PORT
PROGRESS_PORT = 8471
REMAPPED = re.compile(r"([A-Za-z_][A-Za-z0-9_.:/-]{0,63})=([A-Za-z_:][A-Za-z0-9_:]{0,255})")
KUBELET_LOG = "/dev/termination-log"


class InvalidSidecarSetting(HoldfastError):
    """A variable that the operator sets is missing or invalid."""


class Checkpoints(Struct, frozen=True, kw_only=True):
    """Where the training saves checkpoints, and where they are persisted."""

    folder: Path
    resume_link: Path
    store: str = ""
    """The address of an object store; "" where the folder is on a volume that outlives the pod."""
    keep: int = 3
    best_by: Metric = "loss"
    """The metric that selects the best checkpoint, which retention never deletes."""
    resume_from: str = ""
    """The checkpoint to resume from while the job has none of its own (checkpoint.resumeFrom)."""
    resume_newest: bool = False
    """Whether resume_from is an image of this very training, which counts, too, if it is further than the job's own."""
    resume_exactly: bool = False
    """Whether the job's own checkpoints do not count: resume_from alone, or a start from nothing without it."""
    pull_secrets: Path | None = None
    """A folder with the credentials of the registries that resume_from may name an image in."""
    plain_http_registries: tuple[str, ...] = ()
    """The registries that the operator allows to be reached without TLS."""
    tensorboard: Path | None = None
    """The folder of TensorBoard event files, if they must be uploaded to the object store."""


class SidecarSettings(Struct, frozen=True, kw_only=True):
    job: str
    namespace: str
    uid: str
    attempt: int
    index: int
    workers: int = 1
    elastic: bool = False
    """A failed worker is replaced in the same attempt."""
    checkpoints: Checkpoints | None = None
    progress_file: Path | None = None
    notice_file: Path | None = None
    state_dir: Path | None = None
    """A folder that lives as long as the pod: the state that a restarted sidecar needs."""
    metrics_port: int | None = None
    metric_names: Mapping[str, str] = {}
    reports_file: Path | None = None
    token_file: Path | None = None
    report_s: float = 5.0
    grace_s: float = 30.0
    host: str = ""
    """The pod's own address; "" means all addresses."""
    port: int = PORT
    progress_port: int = PROGRESS_PORT
    termination_log: Path = Path(KUBELET_LOG)
    any_user: bool = False
    """Whether the training may run as another user: it has to write to the folders that the sidecar makes."""


def settings(environ: Environ) -> SidecarSettings:
    return SidecarSettings(
        job=_text(environ, "HOLDFAST_JOB"),
        namespace=_text(environ, "HOLDFAST_NAMESPACE"),
        uid=_uid(environ),
        attempt=_whole(environ, "HOLDFAST_ATTEMPT", None),
        index=_whole(environ, "HOLDFAST_INDEX", None),
        workers=_whole(environ, "HOLDFAST_WORKERS", 1, least=1),
        elastic=bool(environ.get("HOLDFAST_ELASTIC")),
        checkpoints=_checkpoints(environ),
        progress_file=_path(environ, "PROGRESS_FILE"),
        notice_file=_path(environ, "HOLDFAST_NOTICE_FILE"),
        state_dir=_path(environ, "HOLDFAST_STATE_DIR"),
        metrics_port=_whole(environ, "METRICS_PORT", 0, most=65535) or None,
        metric_names={**NAMES, **_renamed(environ.get("HOLDFAST_METRIC_NAMES", ""))},
        reports_file=_path(environ, "HOLDFAST_REPORTS_FILE"),
        token_file=_path(environ, "HOLDFAST_TOKEN_FILE"),
        report_s=float(_whole(environ, "HOLDFAST_REPORT_SECONDS", 5, least=1, most=3600)),
        grace_s=float(_whole(environ, "HOLDFAST_GRACE_SECONDS", 30)),
        host=environ.get("HOLDFAST_POD_IP", ""),
        port=_whole(environ, "HOLDFAST_SIDECAR_PORT", PORT, most=65535),
        progress_port=_whole(environ, "HOLDFAST_PROGRESS_PORT", PROGRESS_PORT, most=65535),
        termination_log=termination_log(environ),
        any_user=bool(environ.get("HOLDFAST_ANY_USER")),
    )


def termination_log(environ: Environ) -> Path:
    return _path(environ, "TERMINATION_LOG") or Path(KUBELET_LOG)


def _checkpoints(environ: Environ) -> Checkpoints | None:
    folder, link = _path(environ, "CHECKPOINT_DIR"), _path(environ, "RESUME_FROM")
    if folder is None and link is None:
        return None
    attempt, tensorboard = _whole(environ, "HOLDFAST_ATTEMPT", None), _path(environ, "TENSORBOARD_DIR")
    if folder is None or link is None or folder.name != f"attempt-{attempt}":
        raise InvalidSidecarSetting(
            f"CHECKPOINT_DIR is {str(folder or '')!r} and RESUME_FROM {str(link or '')!r}: "
            f"the operator sets both, and the first ends with attempt-{attempt}"
        )
    return Checkpoints(
        folder=_real(folder),
        resume_link=link,
        store=environ.get("HOLDFAST_STORE", ""),
        keep=_whole(environ, "HOLDFAST_RETENTION", 3, least=1),
        best_by=_metric(environ, "HOLDFAST_BEST_BY"),
        resume_from=environ.get("HOLDFAST_RESUME_FROM", ""),
        resume_newest=bool(environ.get("HOLDFAST_RESUME_NEWEST")),
        resume_exactly=bool(environ.get("HOLDFAST_RESUME_EXACTLY")),
        pull_secrets=_path(environ, "HOLDFAST_PULL_SECRETS"),
        plain_http_registries=tuple(filter(None, environ.get("HOLDFAST_PLAIN_HTTP_REGISTRIES", "").split(","))),
        tensorboard=_real(tensorboard) if tensorboard is not None else None,
    )


def _metric(environ: Environ, name: str) -> Metric:
    match environ.get(name, ""):
        case "" | "loss":
            return "loss"
        case "accuracy":
            return "accuracy"
        case other:
            raise InvalidSidecarSetting(f"{name} is {other!a}: the operator sets it to loss or accuracy")


def _real(folder: Path) -> Path:
    """The path of the volume may contain links; a folder that the training creates on the volume must not be a link."""
    return Path(os.path.realpath(folder.parent)) / folder.name


def _renamed(text: str) -> dict[str, str]:
    """loss=my_loss,accuracy=top1: the reported name, and the training's name for the metric."""
    renamed: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = REMAPPED.fullmatch(part)
        if match is None:
            raise InvalidSidecarSetting(f"HOLDFAST_METRIC_NAMES has {part!a}: write name=metric, such as loss=my_loss")
        renamed[match[1]] = match[2]
    return renamed


def _text(environ: Environ, name: str) -> str:
    if not environ.get(name):
        raise InvalidSidecarSetting(f"{name} is not set: the operator runs this command, in the pod of a worker")
    return environ[name]


def _uid(environ: Environ) -> str:
    uid = _text(environ, "HOLDFAST_JOB_UID")
    if re.fullmatch(r"[A-Za-z0-9._-]{1,253}", uid, re.ASCII) is None:  # the uid is part of the probes' paths
        raise InvalidSidecarSetting(f"HOLDFAST_JOB_UID is {uid!a}: the operator sets it to the job's metadata.uid")
    return uid


def _whole(environ: Environ, name: str, default: int | None, *, least: int = 0, most: int = 10**9) -> int:
    text = environ.get(name, "")
    if not text and default is not None:
        return default
    if re.fullmatch(r"[0-9]{1,10}", text, re.ASCII) is None or not least <= int(text) <= most:
        raise InvalidSidecarSetting(
            f"{name} is {text!a}: the operator sets it to a whole number from {least} to {most}"
        )
    return int(text)


def _path(environ: Environ, name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None
