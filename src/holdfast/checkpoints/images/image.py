"""The OCI image of one checkpoint: the archive as the one layer, a config, and a manifest that says whose it is.

Nothing here reads a clock: the same layer and the same facts give the same digest.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from holdfast.checkpoints.images.errors import ImageError
from holdfast.checkpoints.images.untrusted import UnreadableJson, decode_json

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
ZSTD_LAYER_TYPE = f"{LAYER_TYPE}+zstd"
MAX_MANIFEST = 4 << 20
READ_BYTES = 2 << 20

Mode = Literal["container", "application"]

# Where containerd and CRI-O look for a checkpoint, and what checkpointctl writes and shows.
CRIU = "org.criu.checkpoint."
CRIO_NAME = "io.kubernetes.cri-o.annotations.checkpoint.name"
# Ours.
HOLDFAST = "dev.holdfast."


class Blob(Protocol):
    """Content of a known size that can be read again from any offset. Reading blocks: it is done in a thread."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int) -> Iterator[bytes | memoryview]: ...


class BytesBlob(NamedTuple):
    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)

    def read(self, offset: int) -> Iterator[bytes | memoryview]:
        yield self.content[offset:]


class FileBlob(NamedTuple):
    """A file of which `size` bytes count; a file that is shorter meanwhile raises."""

    path: Path
    size: int

    def read(self, offset: int) -> Iterator[bytes | memoryview]:
        left = self.size - offset
        with self.path.open("rb", buffering=0) as file:
            file.seek(offset)
            while left:
                chunk = file.read(min(READ_BYTES, left))
                if not chunk:
                    raise ImageError(f"{self.path} has become shorter while it was read: it is not pushed")
                left -= len(chunk)
                yield chunk


def file_blob(path: Path) -> FileBlob:
    return FileBlob(path, path.stat().st_size)


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an image says about itself. Facts that are not known are left out of it.

    replica, attempt: of a job's worker. created: RFC 3339, of the checkpoint. engine: containerd or CRI-O;
    runtime: what runs below it, such as runc. base_image: with its digest.
    """

    mode: Mode
    owner_uid: str
    owner_kind: str
    container: str
    run: int
    created: str
    owner_name: str = ""
    replica: str = ""
    attempt: int | None = None
    pod_name: str = ""
    pod_namespace: str = ""
    pod_uid: str = ""
    base_image: str = ""
    base_image_name: str = ""
    base_image_requested: str = ""
    engine: str = ""
    engine_version: str = ""
    runtime: str = ""
    runtime_version: str = ""
    criu_version: str = ""
    kernel: str = ""
    cgroup_version: str = ""
    distribution: str = ""
    distribution_version: str = ""
    cpu_flags: tuple[str, ...] = ()
    architecture: str = "amd64"
    os: str = "linux"


class Descriptor(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A blob as a manifest names it."""

    media_type: str
    digest: str
    size: int
    annotations: dict[str, str] = {}


class ImageManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A manifest as a registry gives it. An index has no layers and is no image of ours."""

    media_type: str = ""
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()
    annotations: dict[str, str] = {}


class CheckpointImage(NamedTuple):
    """All that is pushed beside the layer."""

    facts: ImageFacts
    layer: Descriptor
    config: bytes
    manifest: bytes

    @property
    def digest(self) -> str:
        return sha256_digest(self.manifest)


def sha256_digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def build_image(facts: ImageFacts, layer: Descriptor, diff_id: str) -> CheckpointImage:
    """diff_id: the digest of the layer uncompressed; the layer's own digest where it is not compressed."""
    own = labels(facts)
    config = _json(
        {
            "created": facts.created,
            "architecture": facts.architecture,
            "os": facts.os,
            "config": {"Labels": own},
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
            "history": [{"created": facts.created, "created_by": f"holdfast checkpoint, run {facts.run}"}],
        }
    )
    config_blob = Descriptor(media_type=CONFIG_TYPE, digest=sha256_digest(config), size=len(config))
    annotations = {**own, **runtime_annotations(facts), "org.opencontainers.image.created": facts.created}
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _fields(config_blob),
            "layers": [_fields(layer)],
            "annotations": dict(sorted(annotations.items())),
        }
    )
    return CheckpointImage(facts, layer, config, manifest)


def labels(facts: ImageFacts) -> dict[str, str]:
    """Our own facts, in the config and in the manifest: who lists images needs the manifest alone."""
    named = {
        "mode": facts.mode,
        "owner-uid": facts.owner_uid,
        "owner-kind": facts.owner_kind,
        "owner-name": facts.owner_name,
        "namespace": facts.pod_namespace,
        "pod": facts.pod_name,
        "pod-uid": facts.pod_uid,
        "replica": facts.replica,
        "attempt": "" if facts.attempt is None else str(facts.attempt),
        "container": facts.container,
        "run": str(facts.run),
        "base-image": facts.base_image,
        "kernel": facts.kernel,
        "runtime": " ".join(filter(None, (facts.engine, facts.engine_version))),
        "criu-version": facts.criu_version,
        "cpu-flags": " ".join(sorted(set(facts.cpu_flags))),
    }
    return {f"{HOLDFAST}{name}": value for name, value in sorted(named.items()) if value}


def runtime_annotations(facts: ImageFacts) -> dict[str, str]:
    """What runtimes and checkpointctl read. An application checkpoint has none: no runtime may take it for its own."""
    if facts.mode != "container":
        return {}
    named = {
        "container.name": facts.container,
        "engine.name": facts.engine,
        "engine.version": facts.engine_version,
        "pod.name": facts.pod_name,
        "pod.namespace": facts.pod_namespace,
        "pod.uid": facts.pod_uid,
        "rootfsImageID": facts.base_image,
        "rootfsImageName": facts.base_image_name,
        "rootfsImageUserRequested": facts.base_image_requested,
        "runtime.name": facts.runtime,
        "runtime.version": facts.runtime_version,
        "criu.version": facts.criu_version,
        "host.arch": facts.architecture,
        "host.kernel": facts.kernel,
        "cgroup.version": facts.cgroup_version,
        "distribution.name": facts.distribution,
        "distribution.version": facts.distribution_version,
    }
    known = {f"{CRIU}{name}": value for name, value in named.items() if value}
    return {**known, CRIO_NAME: facts.container}


def parse_manifest(content: bytes, where: str) -> ImageManifest:
    try:
        return decode_json(content, ImageManifest)
    except UnreadableJson as error:
        raise ImageError(f"the manifest of {where} can't be read: {error}") from None


def _fields(descriptor: Descriptor) -> dict[str, Any]:
    return {"mediaType": descriptor.media_type, "digest": descriptor.digest, "size": descriptor.size}


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
