"""The journal on the node's disk, and which files it names."""

import stat
import threading
from pathlib import Path

import pytest

from holdfast.checkpoints.images.image import ImageFacts
from holdfast.node.archives import ArchiveFolder
from holdfast.node.journal import ContainerRecord, Journal, RunRecord

FACTS = ImageFacts(mode="container", owner_uid="u", owner_kind="k", container="trainer", run=3, created="")
RECORD = RunRecord(
    namespace="team",
    backup="nightly",
    uid="u-1",
    run=3,
    pod="numbers",
    pod_uid="p-1",
    boot_id="b",
    containers=(ContainerRecord(name="trainer", facts=FACTS, calls=("2026-01-02T03:04:05.900000+00:00",)),),
)


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    assert journal.open() == ()
    journal.write(RECORD)
    assert Journal(tmp_path / "journal").open() == (RECORD,)
    journal.remove(RECORD)
    assert list((tmp_path / "journal").iterdir()) == []


def test_a_folder_that_the_kubelet_made_is_closed_to_other_users(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    Journal(tmp_path).open()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_a_compressed_layer_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    archive, old = tmp_path / "archive.tar", tmp_path / "layer.tar.zst"
    archive.write_bytes(bytes(1 << 20))
    old.write_bytes(b"of an agent that was killed")
    old.chmod(0o644)
    found = ArchiveFolder(tmp_path, tmp_path).compress(archive, old.name, threading.Event())
    assert found is not None
    assert stat.S_IMODE(found[0].stat().st_mode) == 0o600


def test_what_a_dying_write_left_and_what_cannot_be_read_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".holdfast-partial-u-1-3.json").write_bytes(b"{")
    (tmp_path / "u-2-1.json").write_bytes(b"{")
    assert Journal(tmp_path).open() == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [
        ("checkpoint-numbers_team-trainer-2026-01-02T03:04:05Z.tar", True),
        ("checkpoint-numbers_team-trainer-2026-01-02T04:04:07+01:00.tar", True),
        ("checkpoint-numbers_team-trainer-2026-01-02T03:04:04Z.tar", False),
        ("checkpoint-numbers_team-trainer-2026-01-02T03:04:17Z.tar", False),
        ("checkpoint-numbers_team-other-2026-01-02T03:04:05Z.tar", False),
        ("checkpoint-others_team-trainer-2026-01-02T03:04:05Z.tar", False),
        ("checkpoint-numbers_team-trainer-by-hand.tar", False),
        ("notes.txt", False),
    ],
)
def test_of_an_unanswered_call_only_the_archive_of_that_call_is_removed(
    tmp_path: Path, name: str, is_ours: bool
) -> None:
    folder = ArchiveFolder(tmp_path, tmp_path / "work")
    (tmp_path / name).write_bytes(b"")
    folder.remove(RECORD, RECORD.containers[0])
    assert (tmp_path / name).exists() != is_ours
