"""Images are made of this machine's files, which everybody in a pod can read."""

import json
import os
import sys
import tarfile
from pathlib import Path

import pytest

from tests.nodes import contents
from tests.nodes.image import Layer, write_image, write_layer
from tests.nodes.tree import Tree


def names(archive: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(archive) as tar:
        return {member.name: member for member in tar.getmembers()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A private folder with a program, which a link leads to, and a file."""
    private = tmp_path / "private"
    (private / "bin").mkdir(parents=True)
    (private / "bin" / "program-3").write_text("run")
    (private / "bin" / "program-3").chmod(0o700)
    (private / "bin" / "program").symlink_to("program-3")
    (private / "notes").write_text("read")
    (private / "notes").chmod(0o600)
    private.chmod(0o700)
    return private


def inside(path: Path) -> str:
    return str(path).lstrip("/")


def test_all_that_leads_to_a_file_comes_with_it_and_can_be_read(folder: Path, tmp_path: Path) -> None:
    tree = Tree()
    tree.add(folder / "bin" / "program")
    write_layer(tree, tmp_path / "layer.tar")
    found = names(tmp_path / "layer.tar")
    assert found[inside(folder)].mode == 0o755
    assert found[inside(folder / "bin" / "program")].linkname == "program-3"
    assert found[inside(folder / "bin" / "program-3")].mode == 0o755
    assert inside(folder / "notes") not in found


def test_a_folder_for_everybody_stays_one(folder: Path, tmp_path: Path) -> None:
    """/tmp, when what an image holds lies there."""
    folder.chmod(0o1777)
    tree = Tree()
    tree.add(folder / "notes")
    write_layer(tree, tmp_path / "layer.tar")
    assert names(tmp_path / "layer.tar")[inside(folder)].mode == 0o1777


def test_a_folder_that_is_a_link_is_kept_as_one(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "short").symlink_to(folder)
    tree = Tree()
    tree.add(tmp_path / "short" / "notes")
    write_layer(tree, tmp_path / "layer.tar")
    found = names(tmp_path / "layer.tar")
    assert found[inside(tmp_path / "short")].issym()
    assert found[inside(folder / "notes")].mode == 0o644
    assert inside(tmp_path / "short" / "notes") not in found


def test_what_is_not_wanted_of_a_folder_is_left_out(folder: Path, tmp_path: Path) -> None:
    tree = Tree()
    tree.add_folder(folder, without=frozenset({"bin"}))
    write_layer(tree, tmp_path / "layer.tar")
    assert [name for name in names(tmp_path / "layer.tar") if name.startswith(f"{inside(folder)}/")] == [
        inside(folder / "notes")
    ]


def test_the_key_follows_the_files(folder: Path) -> None:
    def key() -> str:
        tree = Tree()
        tree.add_folder(folder)
        return tree.key()

    before = key()
    assert key() == before
    (folder / "notes").write_text("read again")
    changed = key()
    assert changed != before
    os.utime(folder / "notes", (1, 1))
    assert key() not in (before, changed)


def test_a_program_brings_the_libraries_that_it_is_linked_with(tmp_path: Path) -> None:
    tree = Tree()
    tree.add(Path(sys.executable).resolve())
    tree.add_libraries()
    write_layer(tree, tmp_path / "layer.tar", root=True)
    found = names(tmp_path / "layer.tar")
    assert [name for name in found if Path(name).name.startswith("libc.so")]
    assert found["tmp"].mode == 0o1777
    assert "etc/passwd" in found


def test_an_image_brings_only_the_layers_that_are_given_as_files(folder: Path, tmp_path: Path) -> None:
    tree = Tree()
    tree.add(folder / "notes")
    own, other = write_layer(tree, tmp_path / "layer.tar"), Layer("sha256:0123", 17)
    write_image(tmp_path / "image.tar", "localhost/mine:lab", [other, own], ["run"], {"A": "b"})
    with tarfile.open(tmp_path / "image.tar") as archive:

        def read(name: str) -> dict[str, list[dict[str, object]]]:
            file = archive.extractfile(name)
            assert file is not None
            content: dict[str, list[dict[str, object]]] = json.load(file)
            return content

        (listed,) = read("index.json")["manifests"]
        assert listed["annotations"] == {"io.containerd.image.name": "localhost/mine:lab"}
        manifest = read(f"blobs/{str(listed['digest']).replace(':', '/')}")
        blobs = {name for name in archive.getnames() if name.startswith("blobs/")}
    assert [(one["digest"], one["size"]) for one in manifest["layers"]] == [other[:2], own[:2]]
    assert f"blobs/{own.digest.replace(':', '/')}" in blobs
    assert "blobs/sha256/0123" not in blobs


def test_the_image_has_what_holdfast_needs_and_nothing_of_what_its_tests_need() -> None:
    packages = {path.name for path in contents.python().paths if path.parent.name == "site-packages"}
    assert {"aiohttp", "msgspec", "numpy", "obstore"} <= packages
    assert not {"pytest", "mypy", "moto", "hypothesis"} & packages
    sources = contents.holdfast().paths
    assert contents.SOURCES / "cli" / "sidecar.py" in sources
