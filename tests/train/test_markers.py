"""What a checkpoint says of itself: whether all of it is there, and where in the training it was saved."""

import json
from pathlib import Path

import pytest

from holdfast.train import checkpoint
from holdfast.train.checkpoint import Marker, SaveId

SAVE = SaveId(attempt=1, restart=0, epoch=4, step=None)


def test_a_marker_is_read_as_it_was_written(tmp_path: Path) -> None:
    within = SAVE._replace(step=120)
    checkpoint.write_marker(tmp_path / checkpoint.WHOLE, within, shards=1, rank=0)
    assert checkpoint.read_marker(tmp_path) == Marker(within, shards=1)


def test_readers_in_other_programs_find_the_shards_and_the_ranks(tmp_path: Path) -> None:
    checkpoint.write_marker(tmp_path / checkpoint.shard_name(2), SAVE, shards=4, rank=2)
    said = json.loads((tmp_path / ".holdfast-complete-2").read_text())
    assert (said["shards"], said["ranks"]) == (4, [2])


def test_a_checkpoint_of_one_rank_is_complete_with_its_marker(tmp_path: Path) -> None:
    assert not checkpoint.is_complete(tmp_path)
    checkpoint.write_marker(tmp_path / checkpoint.WHOLE, SAVE, shards=1, rank=0)
    assert checkpoint.is_complete(tmp_path)


def test_shards_are_complete_when_each_rank_s_is_there(tmp_path: Path) -> None:
    for rank in (0, 2, 3):  # 3 is none of three
        checkpoint.write_marker(tmp_path / checkpoint.shard_name(rank), SAVE, shards=3, rank=rank)
        assert not checkpoint.is_complete(tmp_path)
    checkpoint.write_marker(tmp_path / checkpoint.shard_name(1), SAVE, shards=3, rank=1)
    assert checkpoint.is_complete(tmp_path)


def test_the_position_is_that_of_the_marker(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-epoch-9"
    folder.mkdir()
    checkpoint.write_marker(folder / checkpoint.WHOLE, SAVE._replace(step=7), shards=1, rank=0)
    assert checkpoint.saved_position(folder) == (4, 7)


@pytest.mark.parametrize(
    ("name", "epoch"), [("checkpoint-epoch-12", 12), ("pretrained", 0), ("checkpoint-epoch-", 0), ("checkpoint-1", 0)]
)
def test_without_a_marker_the_name_has_the_epoch(tmp_path: Path, name: str, epoch: int) -> None:
    (tmp_path / name).mkdir()
    assert checkpoint.saved_position(tmp_path / name) == (epoch, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[1]",
        '{"shards": 1}',
        '{"shards": 1, "attempt": 0, "restart": 0, "epoch": -1, "step": null}',
        '{"shards": 1, "attempt": 0, "restart": 0, "epoch": 2.5, "step": null}',
        '{"shards": 1, "attempt": 0, "restart": 0, "epoch": true, "step": null}',
        '{"shards": "1", "attempt": 0, "restart": 0, "epoch": 1, "step": null}',
        '{"shards": 1, "attempt": 0, "restart": 0, "epoch": 1, "step": "x"}',
        "\udcff",
    ],
)
def test_a_damaged_marker_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / checkpoint.WHOLE).write_bytes(text.encode(errors="surrogateescape"))
    assert checkpoint.read_marker(tmp_path) is None
    assert not checkpoint.is_complete(tmp_path)


def test_a_marker_that_is_a_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / checkpoint.WHOLE).mkdir()
    assert checkpoint.read_marker(tmp_path) is None


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        ('{"epoch": 5, "step": 7}', (5, 7)),
        ('{"epoch": 5}', (5, None)),
        ('{"epoch": 5, "step": "7"}', (9, None)),
        ("{", (9, None)),
    ],
)
def test_a_copy_without_markers_has_the_position_of_its_manifest(
    tmp_path: Path, manifest: str, expected: tuple[int, int | None]
) -> None:
    folder = tmp_path / "checkpoint-epoch-9"
    folder.mkdir()
    (folder / ".holdfast-manifest.json").write_text(manifest)
    assert checkpoint.saved_position(folder) == expected


def test_shards_of_two_saves_are_not_complete(tmp_path: Path) -> None:
    checkpoint.write_marker(tmp_path / checkpoint.shard_name(0), SAVE._replace(step=7), shards=2, rank=0)
    checkpoint.write_marker(tmp_path / checkpoint.shard_name(1), SAVE._replace(step=9), shards=2, rank=1)
    assert not checkpoint.is_complete(tmp_path)


def test_a_marker_has_the_metrics(tmp_path: Path) -> None:
    checkpoint.write_marker(tmp_path / checkpoint.WHOLE, SAVE, shards=1, rank=0, metrics={"loss": 0.5})
    assert json.loads((tmp_path / checkpoint.WHOLE).read_text())["metrics"] == {"loss": 0.5}
