"""The machines' SSH server comes into the cache whole or not at all, and is never installed."""

import io
import platform
from pathlib import Path

import pytest

from tests.frameworks.provision import NotProvided
from tests.nodes import login
from tests.nodes.login import is_there, login_tree, missing_packages, obstacle, provide_login
from tests.nodes.test_provision import collected


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a Debian without any of the packages."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    monkeypatch.setattr(login, "WHERE", str(tmp_path / "nowhere"))
    monkeypatch.setattr(login, "can_install", lambda: True)
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"VERSION_CODENAME": "bookworm"})
    return tmp_path


class Apt:
    """Fetches and unpacks as it is told, and notes what it was asked for."""

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.fetched: list[str] = []

    def run(self, command: list[str], failed: str) -> None:
        if self.failing and self.failing in command:
            raise NotProvided(failed)
        if "install" in command:
            assert "--download-only" in command
            self.fetched = command[command.index("install") + 1 :]
            (folder,) = (part.partition("=")[2] for part in command if part.startswith("Dir::Cache="))
            for name in self.fetched:
                Path(folder, "archives", f"{name}.deb").touch()
        if command[0] == "dpkg-deb":
            name, tree = Path(command[2]).stem, Path(command[3])
            for place in ("usr/sbin", "lib/x86_64-linux-gnu"):
                (tree / place).mkdir(parents=True, exist_ok=True)
                (tree / place / name).touch()


def test_what_this_machine_lacks_is_unpacked_into_the_cache_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt = Apt()
    monkeypatch.setattr(login, "run", apt.run)
    out = io.StringIO()

    provide_login(out)

    tree = login_tree()
    assert tree is not None
    assert apt.fetched == missing_packages() == ["openssh-server", "sudo"]
    assert is_there()
    assert out.getvalue() == f"Fetching openssh-server, sudo for the tests into {tree.parent}, once.\n"
    assert (tree / "usr/sbin/openssh-server").exists()
    assert (tree / "usr/lib/x86_64-linux-gnu/sudo").exists()
    assert not (tree / "lib").exists()
    assert list(tree.parents[1].iterdir()) == [tree.parent]
    apt.failing = "update"
    provide_login(io.StringIO())


@pytest.mark.parametrize("failing", ["update", "install", "--extract"])
def test_a_fetch_that_fails_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    monkeypatch.setattr(login, "run", Apt(failing).run)

    with pytest.raises(NotProvided, match="the SSH server of the machines was not fetched"):
        provide_login(io.StringIO())

    assert not is_there()
    assert list((cache / "login").iterdir()) == []


def test_what_is_installed_is_not_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sshd", "sudo"):
        (cache / name).touch(mode=0o755)
    monkeypatch.setattr(login, "WHERE", str(cache))
    monkeypatch.setattr(login, "run", lambda *_: pytest.fail("it fetched"))

    provide_login(io.StringIO())

    assert is_there()
    assert login_tree() is None
    assert obstacle() == ""


def test_where_no_packages_can_be_had_it_is_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "can_install", lambda: False)
    out = io.StringIO()

    provide_login(out)

    assert not is_there()
    assert out.getvalue() == f"{obstacle()}\n"
    assert "they need openssh-server and sudo, which `make nodes` fetches" in obstacle()


def test_without_it_the_tests_of_joins_are_deselected_and_the_summary_says_so(tmp_path: Path) -> None:
    setup = (
        "from tests.nodes import login, provision\nprovision.obstacles = list\n"
        "login.obstacle = lambda: 'The tests of machines that join are not run: they need a ladder.'\n"
    )

    done = collected(tmp_path, setup, tests="tests/nodes/test_join.py")

    assert "The tests of machines that join are not run: they need a ladder." in done.stdout
