from pathlib import Path

import pytest

from holdfast.cluster.errors import Misconfigured
from holdfast.cluster.kubernetes.material import RECHECK_S, PemSource, RotatingFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first")
    return path


def rotating(path: Path) -> RotatingFile:
    return RotatingFile(PemSource(what="token", path=path))


def replace(path: Path, content: str) -> None:
    """As the kubelet does it: a new file under the old name."""
    new = path.with_suffix(".new")
    new.write_text(content)
    new.replace(path)


def test_what_is_said_in_line_stays() -> None:
    material = RotatingFile(PemSource(what="token", data=b"inline"))
    assert [material.read(0.0), material.read(1e9, recheck=True)] == [b"inline", b"inline"]


def test_a_replaced_file_is_seen_after_a_minute(path: Path) -> None:
    token = rotating(path)
    assert token.read(100.0) == b"first"
    replace(path, "second")
    assert token.read(100.0 + RECHECK_S - 1) == b"first"
    assert token.read(100.0 + RECHECK_S) == b"second"


def test_a_replaced_file_is_seen_at_once_when_asked(path: Path) -> None:
    token = rotating(path)
    token.read(100.0)
    replace(path, "second")
    assert token.read(100.0, recheck=True) == b"second"
    assert token.read(101.0) == b"second"


def test_a_link_that_points_elsewhere_is_a_change(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    link = tmp_path / "token"
    link.symlink_to("one")
    token = rotating(link)
    assert token.read(0.0) == b"one"
    link.unlink()
    link.symlink_to("two")
    assert token.read(RECHECK_S) == b"two"


def test_a_file_that_is_gone_for_a_moment_leaves_what_it_held(path: Path) -> None:
    token = rotating(path)
    token.read(0.0)
    path.unlink()
    assert token.read(RECHECK_S) == b"first"
    path.write_text("second")
    assert token.read(2 * RECHECK_S) == b"second"


def test_a_file_that_is_being_written_leaves_what_it_held(path: Path) -> None:
    token = rotating(path)
    token.read(0.0)
    path.write_text("")
    assert token.read(RECHECK_S) == b"first"
    path.write_text("second")
    assert token.read(2 * RECHECK_S) == b"second"


def test_a_file_that_was_never_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"cannot read the token in .*/token: No such file"):
        rotating(tmp_path / "token").read(0.0)


def test_a_file_that_was_never_filled_is_named(path: Path) -> None:
    path.write_text("")
    with pytest.raises(Misconfigured, match=r"the token in .*/token is empty"):
        rotating(path).read(0.0)


def test_after_a_failure_the_file_is_looked_at_again_without_waiting(tmp_path: Path) -> None:
    token = rotating(tmp_path / "token")
    with pytest.raises(Misconfigured):
        token.read(0.0)
    (tmp_path / "token").write_text("late")
    assert token.read(0.0) == b"late"
