"""checkpoint.resumeFrom: a checkpoint of another job, or one that holdfast has never seen."""

import http.client
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.checkpoints import fetch as fetching
from holdfast.checkpoints.completeness import MARKER
from holdfast.checkpoints.errors import (
    CheckpointError,
    CheckpointNotFound,
    Corrupt,
    InvalidCheckpointManifest,
    UnsafeContent,
)
from holdfast.checkpoints.manifest import MANIFEST, CheckpointManifest, CheckpointName, SaveInfo, checkpoint_name
from holdfast.checkpoints.settings import open_bucket, open_store
from holdfast.checkpoints.volume_store import VolumeStore
from tests.checkpoints.backends import fresh_prefix
from tests.checkpoints.making import ABOUT, MODEL, content, fill, save
from tests.checkpoints.servers.server import BUCKET, Server

THERE, HERE = checkpoint_name(9, 4), checkpoint_name(9, 0)


def fetch(
    address: str, environ: Mapping[str, str], target: Path, name: CheckpointName, about: SaveInfo
) -> CheckpointManifest:
    return fetching.fetch(fetching.find(address, environ), target, name, about)


def test_a_checkpoint_in_a_store_becomes_this_jobs_own(server: Server, tmp_path: Path) -> None:
    address = server.address(fresh_prefix())
    open_store(address, server.environ).put(THERE, save(tmp_path / "other", THERE), ABOUT)
    fetch(f"{address}/{THERE.folder}", server.environ, tmp_path / "job" / HERE.folder, HERE, ABOUT)
    assert content(tmp_path / "job" / HERE.folder) == MODEL
    assert VolumeStore(tmp_path / "job").verify(HERE).attempt == 0


def test_what_somebody_else_uploaded_is_taken_as_it_is(server: Server, tmp_path: Path) -> None:
    address = server.address(fresh_prefix())
    bucket = open_bucket(address, server.environ)
    bucket.put("pretrained/model.bin", b"weights")
    bucket.put("pretrained/vocabulary/words.txt", b"a b")
    fetch(f"{address}/pretrained", server.environ, tmp_path / "job" / HERE.folder, HERE, ABOUT)
    assert content(tmp_path / "job" / HERE.folder) == {"model.bin": b"weights", "vocabulary/words.txt": b"a b"}
    VolumeStore(tmp_path / "job").verify(HERE)


def test_folders_that_a_stores_web_page_has_made_are_none_of_its_files(s3_server: Server, tmp_path: Path) -> None:
    prefix = fresh_prefix()
    open_bucket(s3_server.address(prefix), s3_server.environ).put("pretrained/layers/1.bin", b"weights")
    for folder in ("pretrained", "pretrained/layers"):
        raw_put(s3_server, f"{prefix}/{folder}/", b"")
    fetch(s3_server.address(f"{prefix}/pretrained"), s3_server.environ, tmp_path / "got", HERE, ABOUT)
    assert content(tmp_path / "got") == {"layers/1.bin": b"weights"}


@pytest.mark.parametrize("key", ["..%2Fevil", "a/%2E%2E/%2E%2E/evil", "a//b", "a%01b"])
def test_an_object_with_a_name_that_leads_astray_is_refused(s3_server: Server, tmp_path: Path, key: str) -> None:
    prefix = fresh_prefix()
    open_bucket(s3_server.address(prefix), s3_server.environ).put("model.bin", b"weights")
    raw_put(s3_server, f"{prefix}/{key}", b"evil")
    with pytest.raises(CheckpointError, match=r"remove it|give the file another name"):
        fetch(s3_server.address(prefix), s3_server.environ, tmp_path / "job" / "got", HERE, ABOUT)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def raw_put(server: Server, key: str, body: bytes) -> None:
    """Of any name: obstore refuses some."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("PUT", f"/{BUCKET}/{key}", body)
    assert connection.getresponse().status == 200
    connection.close()


def test_a_damaged_one_is_not_taken(s3_server: Server, tmp_path: Path) -> None:
    address = s3_server.address(fresh_prefix())
    open_store(address, s3_server.environ).put(THERE, save(tmp_path / "other", THERE), ABOUT)
    open_bucket(address, s3_server.environ).put(f"{THERE.folder}/model.bin", b"WEIGHTS")
    with pytest.raises(Corrupt, match=r"model\.bin"):
        fetch(f"{address}/{THERE.folder}", s3_server.environ, tmp_path / "target", HERE, ABOUT)
    assert not (tmp_path / "target").exists()


def test_a_place_without_anything_is_said_to_be_one(server: Server, tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match=r"correct checkpoint\.resumeFrom"):
        fetch(server.address("nothing/here"), server.environ, tmp_path / "target", HERE, ABOUT)


def test_a_folder_of_the_volume_is_copied(tmp_path: Path) -> None:
    fill(tmp_path / "pretrained", MODEL)
    fetch(str(tmp_path / "pretrained"), {}, tmp_path / "job" / HERE.folder, HERE, ABOUT)
    assert content(tmp_path / "job" / HERE.folder) == MODEL == content(tmp_path / "pretrained")


def test_a_folder_with_a_manifest_must_be_what_it_says(tmp_path: Path) -> None:
    VolumeStore(tmp_path).put(THERE, save(tmp_path, THERE), ABOUT)
    fetch(str(tmp_path / THERE.folder), {}, tmp_path / "first", HERE, ABOUT)
    (tmp_path / THERE.folder / "model.bin").write_bytes(b"WEIGHTS")
    with pytest.raises(Corrupt):
        fetch(str(tmp_path / THERE.folder), {}, tmp_path / "second", HERE, ABOUT)
    for damaged in ("{}", ""):
        (tmp_path / THERE.folder / MANIFEST).write_text(damaged)
        with pytest.raises(InvalidCheckpointManifest):
            fetch(str(tmp_path / THERE.folder), {}, tmp_path / "second", HERE, ABOUT)
    assert not (tmp_path / "second").exists()


def test_a_folder_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match="there is no folder"):
        fetch(str(tmp_path / "gone"), {}, tmp_path / "target", HERE, ABOUT)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointNotFound, match="there is no file"):
        fetch(str(tmp_path / "empty"), {}, tmp_path / "target", HERE, ABOUT)


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    fill(tmp_path / "pretrained", MODEL)
    (tmp_path / "pretrained" / "secrets").symlink_to("/etc")
    with pytest.raises(UnsafeContent, match="leads out"):
        fetch(str(tmp_path / "pretrained"), {}, tmp_path / "target", HERE, ABOUT)


def test_the_step_comes_with_it_from_a_store(server: Server, tmp_path: Path) -> None:
    address, store = server.address(fresh_prefix()), tmp_path / "other"
    folder = save(store, THERE, {**MODEL, MARKER: json.dumps({"epoch": 9, "step": 7}).encode()})
    open_store(address, server.environ).put(THERE, folder, ABOUT)
    assert fetch(f"{address}/{THERE.folder}", server.environ, tmp_path / "job" / HERE.folder, HERE, ABOUT).step == 7
    assert VolumeStore(tmp_path / "job").verify(HERE).step == 7
    bucket = open_bucket(address, server.environ)
    for path, body in {**MODEL, MARKER: b'{"step": 5}'}.items():
        bucket.put(f"by-hand/{path}", body)
    assert fetch(f"{address}/by-hand", server.environ, tmp_path / "again", HERE, ABOUT).step == 5
    bucket.put(f"by-hand/{MARKER}-0", b'{"shards": 2, "step": 5}')
    with pytest.raises(CheckpointNotFound, match="lacks shards"):
        fetch(f"{address}/by-hand", server.environ, tmp_path / "third", HERE, ABOUT)


@pytest.mark.parametrize(("leaf", "epoch", "step"), [("job-epoch-9", 9, 7), ("checkpoint-epoch-3", 3, None)])
def test_a_copy_of_another_name_keeps_its_position_and_a_checkpoint_s_name_counts(
    tmp_path: Path, leaf: str, epoch: int, step: int | None
) -> None:
    store = VolumeStore(tmp_path / "other")
    store.put(THERE, save(store.root, THERE, {**MODEL, MARKER: b'{"step": 7}'}), ABOUT)
    store.get(THERE, tmp_path / leaf)
    source = fetching.find(str(tmp_path / leaf), {})
    assert source.epoch == epoch
    assert source.manifest(checkpoint_name(source.epoch, 0), ABOUT).step == step
