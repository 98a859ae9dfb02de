"""The same archive and the same facts give the same image, and runtimes, checkpointctl and we find what we look for."""

import json
from pathlib import Path

import msgspec
import pytest

from holdfast.checkpoints.images.errors import ImageError
from holdfast.checkpoints.images.image import (
    LAYER_TYPE,
    MANIFEST_TYPE,
    BytesBlob,
    Descriptor,
    ImageFacts,
    build_image,
    file_blob,
    parse_manifest,
    sha256_digest,
)

FACTS = ImageFacts(
    mode="container",
    owner_uid="uid-1",
    owner_kind="CheckpointBackup",
    owner_name="numbers",
    container="main",
    run=7,
    created="2026-01-02T03:04:05Z",
    replica="2",
    attempt=0,
    pod_name="numbers-0",
    pod_namespace="team",
    pod_uid="pod-uid",
    base_image="r.example/base@sha256:" + "ab" * 32,
    base_image_name="r.example/base:1",
    base_image_requested="base:1",
    engine="containerd",
    engine_version="2.2.7",
    runtime="io.containerd.runc.v2",
    criu_version="4.2.1",
    kernel="6.1.0",
    cgroup_version="v2",
    cpu_flags=("sse2", "avx", "avx"),
)
LAYER = Descriptor(media_type=LAYER_TYPE, digest=f"sha256:{'cd' * 32}", size=1000)


def test_the_same_facts_give_the_same_digest_and_others_another() -> None:
    one, same = (build_image(FACTS, LAYER, LAYER.digest) for _ in range(2))
    assert one == same
    other = build_image(msgspec.structs.replace(FACTS, run=8), LAYER, LAYER.digest)
    assert other.digest != one.digest


def test_the_manifest_names_config_and_layer_and_is_annotated_for_runtimes() -> None:
    image = build_image(FACTS, LAYER, LAYER.digest)
    manifest = json.loads(image.manifest)
    assert (manifest["schemaVersion"], manifest["mediaType"]) == (2, MANIFEST_TYPE)
    assert manifest["config"]["digest"] == sha256_digest(image.config)
    assert manifest["config"]["size"] == len(image.config)
    assert manifest["layers"] == [{"mediaType": LAYER_TYPE, "digest": LAYER.digest, "size": 1000}]
    found = manifest["annotations"]
    assert found["org.criu.checkpoint.container.name"] == "main"
    assert found["io.kubernetes.cri-o.annotations.checkpoint.name"] == "main"
    assert found["org.criu.checkpoint.engine.name"] == "containerd"
    assert found["org.criu.checkpoint.rootfsImageUserRequested"] == "base:1"
    assert found["org.criu.checkpoint.rootfsImageID"] == FACTS.base_image
    assert found["org.criu.checkpoint.criu.version"] == "4.2.1"
    assert found["org.criu.checkpoint.host.kernel"] == "6.1.0"
    assert "org.criu.checkpoint.distribution.name" not in found, "what is not known is left out"


def test_our_labels_are_in_the_config_and_in_the_manifest() -> None:
    image = build_image(FACTS, LAYER, LAYER.digest)
    config, manifest = json.loads(image.config), json.loads(image.manifest)
    assert config["config"]["Labels"] == {
        "dev.holdfast.attempt": "0",
        "dev.holdfast.base-image": FACTS.base_image,
        "dev.holdfast.container": "main",
        "dev.holdfast.cpu-flags": "avx sse2",
        "dev.holdfast.criu-version": "4.2.1",
        "dev.holdfast.kernel": "6.1.0",
        "dev.holdfast.mode": "container",
        "dev.holdfast.namespace": "team",
        "dev.holdfast.owner-kind": "CheckpointBackup",
        "dev.holdfast.owner-name": "numbers",
        "dev.holdfast.owner-uid": "uid-1",
        "dev.holdfast.pod": "numbers-0",
        "dev.holdfast.pod-uid": "pod-uid",
        "dev.holdfast.replica": "2",
        "dev.holdfast.run": "7",
        "dev.holdfast.runtime": "containerd 2.2.7",
    }
    assert config["config"]["Labels"].items() <= manifest["annotations"].items()
    assert config["rootfs"] == {"type": "layers", "diff_ids": [LAYER.digest]}
    assert (config["architecture"], config["os"], config["created"]) == ("amd64", "linux", FACTS.created)


def test_no_runtime_takes_an_application_checkpoint_for_its_own() -> None:
    manifest = build_image(msgspec.structs.replace(FACTS, mode="application"), LAYER, LAYER.digest).manifest
    annotations = parse_manifest(manifest, "x").annotations
    assert not [name for name in annotations if name.startswith(("org.criu", "io.kubernetes"))]
    assert annotations["dev.holdfast.mode"] == "application"


def test_a_manifest_that_is_none_is_refused() -> None:
    with pytest.raises(ImageError, match="manifest of a:b"):
        parse_manifest(b'{"layers": 1}', "a:b")


def test_a_blob_is_read_from_any_offset(tmp_path: Path) -> None:
    content = bytes(range(256)) * 20_000
    path = tmp_path / "blob"
    path.write_bytes(content)
    for blob in (file_blob(path), BytesBlob(content)):
        assert blob.size == len(content)
        for offset in (0, 1, 2 << 20, len(content)):
            assert b"".join(blob.read(offset)) == content[offset:]


def test_a_file_that_shrinks_while_it_is_read_is_not_pushed(tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(bytes(1000))
    blob = file_blob(path)
    path.write_bytes(bytes(999))
    with pytest.raises(ImageError, match="shorter"):
        list(blob.read(0))
