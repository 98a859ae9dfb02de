"""What a manifest may say, and what is refused with one clear sentence."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoints import manifest as paths
from holdfast.checkpoints.errors import InvalidCheckpointManifest, UnsafeContent
from holdfast.checkpoints.manifest import (
    MANIFEST,
    MAX_BYTES,
    CheckpointManifest,
    CheckpointName,
    File,
    SaveInfo,
    check_path,
    check_path_set,
    checkpoint_name,
    decode,
    encode,
    parse,
)

DIGEST = "0" * 64
ABOUT = SaveInfo(job="uid", saved_at="2026-01-02T03:04:05Z", world=4)


def manifest(*files: File) -> CheckpointManifest:
    return CheckpointManifest(3, 1, ABOUT, files or (File("model.bin", 7, DIGEST),))


def facts(**changes: Any) -> bytes:
    """A manifest as it is written, with some of it replaced."""
    return json.dumps({**json.loads(encode(manifest())), **changes}).encode()


def test_a_manifest_is_the_json_that_others_may_read() -> None:
    written = encode(manifest(File("b", 1, DIGEST, ".holdfast-rank-1/b"), File("a", 0, DIGEST)))
    assert json.loads(written) == {
        "version": 1,
        "epoch": 3,
        "attempt": 1,
        "job": "uid",
        "savedAt": "2026-01-02T03:04:05Z",
        "world": 4,
        "files": [
            {"path": "a", "size": 0, "sha256": DIGEST},
            {"path": "b", "size": 1, "sha256": DIGEST, "keptAt": ".holdfast-rank-1/b"},
        ],
    }


def test_a_manifest_has_the_job_the_step_and_the_metrics_where_they_are_known() -> None:
    about = replace(ABOUT, namespace="ml", name="digits")
    known = replace(manifest(), about=about, step=7, metrics={"loss": 0.25, "bad": math.nan}, save="0.1.3.7")
    written = json.loads(encode(known))
    assert (written["job"], written["namespace"], written["name"]) == ("uid", "ml", "digits")
    assert (written["step"], written["metrics"]) == (7, {"loss": 0.25})
    assert decode(encode(known), "it") == replace(known, metrics={"loss": 0.25})
    assert decode(encode(replace(known, step=0)), "it").step == 0


def test_a_manifest_without_a_step_is_that_of_a_whole_epoch() -> None:
    old = decode(facts(), "it")
    assert (old.step, old.metrics, old.about.namespace, old.about.name) == (None, {}, "", "")


@given(st.dictionaries(st.text("ab/ü😀 .", min_size=1, max_size=12), st.integers(0, 1 << 50), min_size=1, max_size=8))
def test_what_is_written_is_read_and_what_is_refused_is_refused_both_ways(sizes: dict[str, int]) -> None:
    files = tuple(File(path, size, DIGEST) for path, size in sorted(sizes.items()))
    try:
        written = encode(manifest(*files))
    except UnsafeContent:
        with pytest.raises(InvalidCheckpointManifest):
            decode(facts(files=[{"path": file.path, "size": file.size, "sha256": DIGEST} for file in files]), "it")
    else:
        assert decode(written, "it") == manifest(*files)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/etc/passwd", "is absolute"),
        ("../model.bin", "'..'"),
        ("a/../../b", "'..'"),
        ("a/./b", "'.'"),
        ("a//b", "an empty part"),
        ("a/", "an empty part"),
        ("", "an empty part"),
        ("a\nb", "control character"),
        ("a\x00b", "control character"),
        ("a\u2028b", "control character"),
        ("a\\b", "backslash"),
        ("a\udcffb", "not valid UTF-8"),
        ("x" * 256, "longer than"),
        ("x/" * 300 + "y", "longer than 400 bytes"),
        ("ü" * 130, "longer than"),
    ],
)
def test_a_path_that_could_lead_astray_is_refused(path: str, reason: str) -> None:
    with pytest.raises(UnsafeContent, match=reason) as raised:
        check_path(path)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 300
    written = facts(files=[{"path": path, "size": 1, "sha256": DIGEST}])
    with pytest.raises(InvalidCheckpointManifest, match="attempt 1 is refused"):
        decode(written, str(checkpoint_name(3, 1)))
    with pytest.raises(InvalidCheckpointManifest):
        decode(facts(files=[{"path": "a", "size": 1, "sha256": DIGEST, "keptAt": path or "/"}]), "it")


@given(st.text(max_size=30))
def test_a_path_that_is_allowed_stays_below_any_folder(path: str) -> None:
    from posixpath import join, normpath

    try:
        check_path(path)
    except UnsafeContent:
        return
    assert normpath(join("/folder", path)) == f"/folder/{path}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Model.bin", "model.bin"),
        ("caf\u00e9", "cafe\u0301"),
        ("stra\u00dfe", "STRASSE"),
        ("dir/A", "DIR/a"),
    ],
)
def test_names_that_are_one_for_some_file_systems_are_refused(one: str, other: str) -> None:
    with pytest.raises(UnsafeContent, match="one name for some file systems: rename one"):
        check_path_set([one, other])


@pytest.mark.parametrize("files", [("a", "a/b"), ("a/b/c", "a/b"), ("A", "a/b")])
def test_a_file_where_another_needs_a_folder_is_refused(files: tuple[str, ...]) -> None:
    with pytest.raises(UnsafeContent, match="needs it to be a folder"):
        check_path_set(files)


def test_the_same_path_twice_is_refused() -> None:
    twice = [{"path": "a", "size": 1, "sha256": DIGEST}] * 2
    with pytest.raises(InvalidCheckpointManifest, match="kept at one place"):
        decode(facts(files=twice), "it")


def test_a_hundred_thousand_files_are_refused() -> None:
    many = [{"path": f"{number}", "size": 1, "sha256": DIGEST} for number in range(100_000)]
    with pytest.raises(InvalidCheckpointManifest, match="larger than 4 MiB"):
        decode(facts(files=many), "it")
    with pytest.raises(InvalidCheckpointManifest, match=r"more than 10000 files.*: pack them into fewer, larger ones"):
        decode(facts(files=many[: paths.MAX_FILES + 1]), "it")
    with pytest.raises(UnsafeContent, match="more than 10000 files"):
        encode(manifest(*(File(f"shard-{number}", 1, DIGEST) for number in range(100_000))))


def test_more_folders_than_any_framework_makes_are_refused() -> None:
    """10,000 files of 400 bytes a path, each with folders of its own, would be 195,000 folders."""
    files = (File(f"{number:05}/{'d/' * 3}file", 0, DIGEST) for number in range(9_000))
    with pytest.raises(UnsafeContent, match="more than 20000 folders in the checkpoint: put more files into each"):
        encode(manifest(*files))
    content = facts(files=[{"path": f"{'d/' * 33}file", "size": 0, "sha256": DIGEST}])
    with pytest.raises(InvalidCheckpointManifest, match="more than 32 folders deep"):
        decode(content, "checkpoint-epoch-3")


def test_as_many_files_as_are_allowed_fit_into_a_manifest() -> None:
    files = tuple(File(f"{'x' * 200}/{number:05}", 1 << 40, DIGEST) for number in range(paths.MAX_FILES))
    assert len(decode(encode(manifest(*files)), "it").files) == paths.MAX_FILES


def test_a_manifest_beyond_all_measure_is_not_even_parsed() -> None:
    with pytest.raises(InvalidCheckpointManifest, match="larger than 4 MiB"):
        decode(b" " * (MAX_BYTES + 1), "it")


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": -1},
        {"epoch": "3"},
        {"epoch": 1 << 70},
        {"attempt": None},
        {"attempt": True},
        {"job": 1},
        {"savedAt": None},
        {"world": 1.5},
        {"namespace": 1},
        {"name": None},
        {"save": 1},
        {"step": -1},
        {"step": "7"},
        {"step": True},
        {"metrics": []},
        {"metrics": {"loss": "low"}},
        {"metrics": {"loss": 10**400}},
        {"files": None},
        {"files": "model.bin"},
        {"files": ["model.bin"]},
        {"files": [{"path": "a"}]},
        {"files": [{"path": "a", "size": -1, "sha256": DIGEST}]},
        {"files": [{"path": "a", "size": 1, "sha256": "short"}]},
        {"files": [{"path": "a", "size": 1, "sha256": DIGEST.replace("0", "Z")}]},
        {"files": [{"path": 1, "size": 1, "sha256": DIGEST}]},
        {"files": [{"path": "a", "size": 1, "sha256": DIGEST, "keptAt": 1}]},
    ],
)
def test_a_manifest_of_the_wrong_shape_is_called_damaged(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidCheckpointManifest, match="the manifest of it can't be read"):
        decode(facts(**changes), "it")


@pytest.mark.parametrize("missing", ["version", "epoch", "attempt", "job", "savedAt", "world", "files"])
def test_a_manifest_that_lacks_something_is_called_damaged(missing: str) -> None:
    rest = {name: value for name, value in json.loads(facts()).items() if name != missing}
    with pytest.raises(InvalidCheckpointManifest, match="it is damaged"):
        decode(json.dumps(rest).encode(), "it")


def test_a_deeply_nested_manifest_is_called_damaged() -> None:
    with pytest.raises(InvalidCheckpointManifest):
        decode(b"[" * 100_000, "it")


def test_a_checkpoint_without_files_is_refused() -> None:
    with pytest.raises(InvalidCheckpointManifest, match="holds no file"):
        decode(facts(files=[]), "it")


def test_holdfasts_own_names_are_not_a_trainings() -> None:
    with pytest.raises(UnsafeContent, match="holdfast's own"):
        encode(manifest(File(MANIFEST, 1, DIGEST)))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_a_sentence(content: bytes) -> None:
    with pytest.raises(InvalidCheckpointManifest) as raised:
        decode(content, "it")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("attempt", "leaf", "expected"),
    [
        ("attempt-0", "checkpoint-epoch-0", CheckpointName(0, 0, "checkpoint-epoch-0")),
        ("attempt-12", "checkpoint-epoch-345", CheckpointName(345, 12, "checkpoint-epoch-345")),
        ("attempt-1", "checkpoint-epoch-007", CheckpointName(7, 1, "checkpoint-epoch-007")),
        ("attempt-01", "checkpoint-epoch-1", None),
        ("attempt--1", "checkpoint-epoch-1", None),
        ("attempt-1.resume", "checkpoint-epoch-1", None),
        ("attempt-1", "checkpoint-epoch-1.tmp", None),
        ("attempt-1", ".checkpoint-epoch-1", None),
        ("attempt-1", "checkpoint-epoch-", None),
        ("attempt-1", "checkpoint-epoch-1\n", None),
        ("attempt-1", "checkpoint-epoch-\u0661", None),
        ("attempt-1", "checkpoint-epoch-" + "9" * 19, None),
    ],
)
def test_which_folders_are_checkpoints(attempt: str, leaf: str, expected: CheckpointName | None) -> None:
    assert parse(attempt, leaf) == expected


@pytest.mark.parametrize("leaf", ["..", "../x", "checkpoint-epoch-1/../../x", "", "/"])
def test_a_name_made_by_hand_can_not_lead_anywhere_else(leaf: str) -> None:
    with pytest.raises(UnsafeContent, match="not the name of a checkpoint"):
        _ = CheckpointName(1, 0, leaf).folder
    with pytest.raises(UnsafeContent):
        _ = CheckpointName(1, 0, leaf).quarantined
