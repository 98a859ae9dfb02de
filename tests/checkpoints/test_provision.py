"""The servers for the tests are installed once, and their absence is said in so many words."""

import io
import stat
from pathlib import Path

import pytest

from tests.checkpoints import provision
from tests.control_plane.toolchain import NoGo
from tests.frameworks.provision import NotProvided

INSTALLS = "/bin/mkdir -p node_modules/azurite/dist/src/blob; : > node_modules/azurite/dist/src/blob/main.js"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with Debian's packages alone on it, and an empty cache."""
    folder = tmp_path / "bin"
    for name in (provision.REGISTRY, provision.SKOPEO):
        program(folder / name, "")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return folder


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_without_node_it_says_what_to_install(tools: Path) -> None:
    program(provision.fake_gcs(), "")
    out = io.StringIO()
    provision.provide(out)
    assert "azurite needs Node.js 20 or newer with npm" in out.getvalue()
    assert list(provision.lacking()) == ["azure"]


def test_without_go_it_says_what_to_install(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(cache: Path, *, needed: str) -> Path:
        raise NoGo(f"Go {needed} or newer is not on the PATH. Install Go.")

    program(tools / "node", "")
    program(tools / "npm", INSTALLS)
    monkeypatch.setattr(provision, "find_go", find)
    assert provision.lacking() == {}, "nobody has tried yet"
    out = io.StringIO()
    provision.provide(out)
    assert "fake-gcs-server needs Go. Go 1.25 or newer is not on the PATH. Install Go." in out.getvalue()
    assert list(provision.lacking()) == ["gcs"]
    program(tools / "go", 'echo > "$GOBIN/fake-gcs-server"')
    monkeypatch.setattr(provision, "find_go", lambda cache, *, needed: tools / "go")
    provision.provide(io.StringIO())
    assert provision.lacking() == {}


def test_what_is_there_is_not_installed_again(tools: Path) -> None:
    program(provision.fake_gcs(), "")
    program(tools / "node", "")
    program(tools / "npm", INSTALLS)
    provision.provide(io.StringIO())
    assert provision.azurite().exists()
    program(tools / "npm", "exit 1")
    provision.provide(io.StringIO())


def test_a_failed_installation_says_why_and_leaves_nothing(tools: Path) -> None:
    program(provision.fake_gcs(), "")
    program(tools / "node", "")
    program(tools / "npm", "echo the disk is full; exit 1")
    with pytest.raises(NotProvided, match="the disk is full"):
        provision.provide(io.StringIO())
    assert not provision.azurite().exists()


def test_debians_packages_are_installed_where_they_can_be(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[str] = []
    program(provision.fake_gcs(), "")
    (tools / provision.REGISTRY).unlink()
    monkeypatch.setattr(provision, "can_install", lambda: True)
    monkeypatch.setattr(provision, "install", lambda *packages: installed.extend(packages))
    out = io.StringIO()
    provision.provide(out)
    assert installed == [provision.REGISTRY]
    assert "Installing for the tests, once: docker-registry" in out.getvalue()


def test_without_debians_packages_it_says_what_to_install(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(provision.fake_gcs(), "")
    program(tools / "node", "")
    program(tools / "npm", INSTALLS)
    (tools / provision.SKOPEO).unlink()
    monkeypatch.setattr(provision, "can_install", lambda: False)
    out = io.StringIO()
    provision.provide(out)
    assert "The tests with a registry are not run: they need Debian's packages skopeo" in out.getvalue()
    assert list(provision.lacking()) == ["registry"]
