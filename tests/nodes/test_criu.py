"""CRIU comes into the cache whole or not at all, and where it can't be had, it is said why."""

import io
import re
import subprocess
from pathlib import Path

import pytest

from tests.frameworks.provision import NotProvided
from tests.nodes import criu
from tests.nodes.criu import check_version, criu_program, lacks_limits, obstacle, provide_criu, write_starter
from tests.nodes.test_provision import collected

ARCHIVES = Path("cache", "archives")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    monkeypatch.setattr(criu, "can_install", lambda: True)
    monkeypatch.setattr(criu, "_mirror", lambda: "https://mirror.invalid/debian")
    return tmp_path


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def unpacked(folder: Path, said: str = "Version: 4.2.1") -> Path:
    """What Debian's packages bring, with a loader that says what it is told."""
    program(folder / "tree/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", f'echo "{said}"; echo "$@" >&2')
    program(folder / "tree/usr/sbin/criu", "exit 1")
    return folder


def test_criu_is_started_by_its_own_loader_wherever_its_folder_is(tmp_path: Path) -> None:
    write_starter(unpacked(tmp_path / "before"))
    folder = (tmp_path / "before").rename(tmp_path / "after")
    done = subprocess.run([folder / "bin" / "criu", "swrk", "a b"], capture_output=True, text=True, check=True)
    tree = folder / "tree/usr"
    assert done.stderr == f"--library-path {tree}/lib/x86_64-linux-gnu {tree}/sbin/criu swrk a b\n"


def test_the_limits_library_is_loaded_where_there_is_one(tmp_path: Path) -> None:
    (unpacked(tmp_path) / "limits.so").touch()
    write_starter(tmp_path)
    done = subprocess.run([tmp_path / "bin" / "criu"], capture_output=True, text=True, check=True)
    assert done.stderr.startswith(f"--preload {tmp_path}/limits.so --library-path ")


def test_packages_without_a_loader_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotProvided, match="no loader"):
        write_starter(tmp_path)


@pytest.mark.parametrize("said", ["Version: 4.2", "Version: 4.2.1", "Version: 4.10", "Version: 5.0"])
def test_a_criu_that_is_new_enough_will_do(tmp_path: Path, said: str) -> None:
    check_version(program(tmp_path / "criu", f"echo '{said}'"))


@pytest.mark.parametrize("said", ["Version: 4.1.1", "Version: 3.17.1", "illegal instruction"])
def test_a_criu_that_is_too_old_or_does_not_run_is_quoted(tmp_path: Path, said: str) -> None:
    with pytest.raises(NotProvided, match=re.escape(said)):
        check_version(program(tmp_path / "criu", f"echo '{said}'"))


@pytest.mark.parametrize(("capabilities", "lacking"), [("000001ffffffffff", False), ("000001fffeffffff", True)])
def test_limits_are_lacking_without_the_capability_to_read_them(
    tmp_path: Path, capabilities: str, lacking: bool
) -> None:
    (tmp_path / "status").write_text(f"Name:\tpython\nCapEff:\t{capabilities}\nSeccomp:\t0\n")
    assert lacks_limits(tmp_path / "status") is lacking


def test_criu_is_fetched_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(folder: Path, _: str) -> None:
        (folder / ARCHIVES).mkdir(parents=True)
        (folder / ARCHIVES / "criu.deb").touch()

    def extract(command: list[str], _: str) -> None:
        if command[0] == "dpkg-deb":
            unpacked(Path(command[-1]).parent)

    monkeypatch.setattr(criu, "_fetch", fetch)
    monkeypatch.setattr(criu, "run", extract)
    out = io.StringIO()
    provide_criu(out)
    assert out.getvalue() == f"Fetching CRIU for the tests into {criu_program().parents[1]}, once.\n"
    assert list((cache / "criu").iterdir()) == [criu_program().parents[1]]
    monkeypatch.setattr(criu, "_fetch", lambda *_: pytest.fail("it fetched again"))
    provide_criu(io.StringIO())


def test_what_could_not_be_fetched_is_not_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise NotProvided("CRIU was not fetched; the network is down")

    monkeypatch.setattr(criu, "_fetch", fail)
    with pytest.raises(NotProvided, match="the network is down"):
        provide_criu(io.StringIO())
    assert list((cache / "criu").iterdir()) == []


def test_where_criu_can_t_be_had_nothing_is_fetched_and_it_is_said(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(criu, "can_install", lambda: False)
    monkeypatch.setattr(criu, "_fetch", lambda *_: pytest.fail("it fetched"))
    out = io.StringIO()
    provide_criu(out)
    assert out.getvalue() == f"{obstacle()}\n"
    assert "CRIU 4.2 or newer" in obstacle()


def test_where_criu_can_t_be_had_its_tests_are_deselected_and_the_summary_says_so(tmp_path: Path) -> None:
    setup = "from tests.nodes import criu\ncriu.obstacle = lambda: 'No CRIU here.'\n"
    done = collected(tmp_path, setup, "--collect-only", "-q", tests="tests/nodes/test_restore.py")
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout
    assert re.search(r"No CRIU here. \(\d+ tests\)", done.stdout), done.stdout
