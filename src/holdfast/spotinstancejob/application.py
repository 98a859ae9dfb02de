"""Mode application: the sidecar beside a replica's training, and what the training is told. Pure.

The training saves to CHECKPOINT_DIR and goes on from RESUME_FROM, as a TrainingJob's does. The folder goes with the
pod: images hold it, and where the job names an object store, that keeps it, too.
"""

from collections.abc import Iterator
from typing import Any

from holdfast.api.checkpoint import CheckpointStorage
from holdfast.api.spotinstancejob import SpotCheckpointStore, SpotInstanceJob
from holdfast.pods import checkpoints
from holdfast.pods.checkpoints import StoreAccess, registry_access, store_access, store_url
from holdfast.pods.sidecar import (
    CONFIG_MOUNT,
    CONFIG_VOLUME,
    GRACE_S,
    RUN_MOUNT,
    RUN_VOLUME,
    STATE_MOUNT,
    TOKEN_MOUNT,
    UPLOADING_GRACE_S,
    SidecarSpec,
    Variable,
    plain_variables,
    progress_url,
    shared_env,
    sidecar_container,
    sidecar_env,
    sidecar_resources,
    token_volume,
    trainer_probes,
)
from holdfast.pods.template import Defaults, escape_dollar
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.template import training_container

# A replica is alone: it is worker 0 of one.
INDEX_OF_REPLICA = 0
INDEX: Variable = {"name": "HOLDFAST_INDEX", "value": str(INDEX_OF_REPLICA)}
FOLDER_MOUNT = {"name": checkpoints.VOLUME, "mountPath": checkpoints.FOLDER}
# As whom the training runs, and what a namespace with the restricted profile asks of each container besides.
_USER = ("runAsUser", "runAsGroup", "runAsNonRoot", "seccompProfile")
# As root, and with leave to read and remove the files of any user.
_ROOT = {
    "runAsUser": 0,
    "runAsNonRoot": False,
    "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE", "FOWNER"]},
}


def with_sidecar(
    job: SpotInstanceJob,
    spec: dict[str, Any],
    *,
    replica: int,
    attempt: int,
    resume_from: str,
    is_exact: bool = False,
    defaults: Defaults,
) -> dict[str, Any]:
    """The pod's spec with the sidecar beside the training's container.

    resume_from: the image that the attempt goes on from, by digest; empty for none.
    is_exact: whether what the replica has in the object store does not count, however far it is.
    """
    name = training_container(job)
    trainer = next(each for each in spec["containers"] if each["name"] == name)
    access = _access(job, spec, resume_from)
    grace_s = _grace_s(job, spec)
    sidecar = sidecar_container(
        SidecarSpec(
            job=job.metadata,
            image=defaults.holdfast_image,
            env=(
                INDEX,
                *shared_env(job.metadata),
                *plain_variables(_sidecar_variables(job, replica, attempt, grace_s)),
                *plain_variables(_resume_variables(resume_from, is_exact, defaults)),
                *plain_variables([] if _is_user_known(trainer, spec) else [("HOLDFAST_ANY_USER", "true")]),
                *access.env,
            ),
            mounts=(CONFIG_MOUNT, FOLDER_MOUNT, RUN_MOUNT, STATE_MOUNT, TOKEN_MOUNT, *access.mounts),
            resources=sidecar_resources(trainer.get("resources") or {}, reserves=defaults.sidecar_reserves),
        )
    )
    sidecar["securityContext"] |= _user(trainer, spec)
    changed = _trainer(job, trainer, spec, attempt, defaults)
    made = {
        **spec,
        # Last: init containers of the user's may take long, and need nothing of a sidecar.
        "initContainers": [*(spec.get("initContainers") or ()), sidecar],
        "containers": [changed if each is trainer else each for each in spec["containers"]],
        "volumes": [*(spec.get("volumes") or ()), *_volumes(job), *access.volumes],
    }
    if grace_s != GRACE_S:
        made["terminationGracePeriodSeconds"] = grace_s
    return made


def store_of(job: SpotInstanceJob, replica: int) -> str:
    """Where a replica's checkpoints are kept in the job's object store; empty without one.

    Each replica has a folder of its own: they write the same names, and none may take another's for its own.
    """
    written = job.spec.checkpoint_config.checkpoint_storage
    if written is None or not written.bucket:
        return ""
    prefix = written.path_prefix or f"{job.metadata.namespace}/{job.metadata.name}/{job.metadata.uid}"
    return store_url(_storage(written), f"{prefix}/r{replica}")


def _trainer(
    job: SpotInstanceJob, container: dict[str, Any], spec: dict[str, Any], attempt: int, defaults: Defaults
) -> dict[str, Any]:
    """The training's container. What the user has written replaces ours: variables and probes one by one."""
    own = list(container.get("env") or ())
    written = {each.get("name") for each in own}
    ours = [
        INDEX,
        *shared_env(job.metadata),
        *plain_variables(_trainer_variables(attempt, bool(spec.get("hostNetwork")), defaults)),
    ]
    folder = defaults.working_directory(job.metadata)
    probes = trainer_probes(job.metadata)
    return {
        **probes,
        **({"workingDir": folder} if folder else {}),
        # Without a termination message, the last lines of a failed container's log give the reason.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **container,
        "lifecycle": {**probes["lifecycle"], **(container.get("lifecycle") or {})},
        "env": [*(each for each in ours if each["name"] not in written), *own],
        "volumeMounts": [*(container.get("volumeMounts") or ()), FOLDER_MOUNT, RUN_MOUNT],
    }


def _trainer_variables(attempt: int, is_on_host: bool, defaults: Defaults) -> Iterator[tuple[str, str]]:
    yield "HOLDFAST_ATTEMPT", str(attempt)
    yield progress_url(shares_loopback=defaults.shared_loopback or is_on_host)
    yield from checkpoints.folder_env(attempt)


def _sidecar_variables(job: SpotInstanceJob, replica: int, attempt: int, grace_s: int) -> Iterator[tuple[str, str]]:
    yield from sidecar_env(job.metadata, attempt=attempt, grace_s=grace_s)
    yield from checkpoints.folder_env(attempt)
    yield "HOLDFAST_RETENTION", str(job.spec.checkpoint_config.retention)
    if store := store_of(job, replica):
        yield "HOLDFAST_STORE", escape_dollar(store)


def _resume_variables(resume_from: str, is_exact: bool, defaults: Defaults) -> Iterator[tuple[str, str]]:
    if is_exact:
        yield "HOLDFAST_RESUME_EXACTLY", "true"
    if resume_from:
        yield "HOLDFAST_RESUME_FROM", f"oci://{resume_from}"
        if not is_exact:
            # The image may be of another replica, which has got further than what this one has in the store.
            yield "HOLDFAST_RESUME_NEWEST", "true"
        if defaults.plain_http_registries:
            yield "HOLDFAST_PLAIN_HTTP_REGISTRIES", ",".join(defaults.plain_http_registries)


def _volumes(job: SpotInstanceJob) -> list[dict[str, Any]]:
    # A replica runs, too, while the operator can't be reached.
    config = {"name": names.reports_name(job.metadata.name), "optional": True}
    return [
        {"name": CONFIG_VOLUME, "configMap": config},
        {"name": checkpoints.VOLUME, "emptyDir": {}},
        {"name": RUN_VOLUME, "emptyDir": {}},
        token_volume(),
    ]


def _access(job: SpotInstanceJob, spec: dict[str, Any], resume_from: str) -> StoreAccess:
    written = job.spec.checkpoint_config.checkpoint_storage
    store = store_access(_storage(written)) if store_of(job, 0) and written is not None else StoreAccess()
    secrets = (each.get("name", "") for each in spec.get("imagePullSecrets") or ()) if resume_from else ()
    return store + registry_access(filter(None, secrets))


def _storage(written: SpotCheckpointStore) -> CheckpointStorage:
    """As a TrainingJob names the same store."""
    match written.type:
        case "s3":
            names_of_bucket = {"s3_bucket": written.bucket}
        case "azure":
            names_of_bucket = {"azure_container": written.bucket}
        case _:
            names_of_bucket = {"gcs_bucket": written.bucket}
    return CheckpointStorage(
        type=written.type,
        region=written.region,
        endpoint=written.endpoint,
        azure_account=written.azure_account,
        secret_ref=written.secret_ref,
        **names_of_bucket,
    )


def _is_user_known(trainer: dict[str, Any], spec: dict[str, Any]) -> bool:
    return any("runAsUser" in (each.get("securityContext") or {}) for each in (trainer, spec))


def _user(trainer: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """As whom the sidecar runs: both containers write to the same folders, and remove what the other has written.

    As the training, if that is written. Else the training's image decides, most often for root: the sidecar is root,
    too, unless the pod may not have it.
    """
    own, of_pod = trainer.get("securityContext") or {}, spec.get("securityContext") or {}
    if _is_user_known(trainer, spec) or own.get("runAsNonRoot", of_pod.get("runAsNonRoot")):
        return {field: own[field] for field in _USER if field in own}
    return _ROOT


def _grace_s(job: SpotInstanceJob, spec: dict[str, Any]) -> int:
    """The grace period of the pod: the user's, else the time that a last save needs to be uploaded."""
    written = spec.get("terminationGracePeriodSeconds")
    if written is not None:
        return int(written)
    return UPLOADING_GRACE_S if store_of(job, 0) else GRACE_S
