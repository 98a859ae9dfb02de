"""Prometheus for the tests is fetched once and not installed, and its absence is said in so many words."""

import io
import stat
from pathlib import Path

import pytest

from tests.frameworks.provision import NotProvided
from tests.monitoring import provision

# As `apt-get download` and `dpkg-deb --extract` do, with programs that end well.
APT_GET = 'case "$*" in *download*) : > prometheus_1_all.deb;; esac; echo "$*" >> "$HOLDFAST_CACHE/asked"'
DPKG_DEB = """/bin/mkdir -p "$3/usr/bin"
for name in prometheus promtool; do
  echo '#!/bin/sh' > "$3/usr/bin/$name"; /bin/chmod +x "$3/usr/bin/$name"
done"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with what fetches packages, and an empty cache."""
    folder = tmp_path / "bin"
    program(folder / "apt-get", APT_GET)
    program(folder / "dpkg-deb", DPKG_DEB)
    (folder / "env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(provision, "can_install", lambda: True)
    return folder


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_it_is_unpacked_into_the_cache_once(tools: Path, tmp_path: Path) -> None:
    out = io.StringIO()
    provision.provide(out)
    assert "Fetching Prometheus for the tests" in out.getvalue()
    found = provision.program("promtool")
    assert found is not None
    assert found.is_relative_to(tmp_path / "cache")
    assert not any(" install " in line for line in (tmp_path / "cache" / "asked").read_text().splitlines())
    program(tools / "apt-get", "exit 1")
    provision.provide(io.StringIO())


def test_what_the_path_has_is_used(tools: Path) -> None:
    for name in provision.PROGRAMS:
        program(tools / name, "")
    program(tools / "apt-get", "exit 1")
    provision.provide(io.StringIO())
    assert provision.program("prometheus") == tools / "prometheus"


def test_elsewhere_it_says_what_is_not_run_and_what_is_missing(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "can_install", lambda: False)
    out = io.StringIO()
    provision.provide(out)
    assert "The tests with Prometheus are not run: they need Debian's package prometheus" in out.getvalue()
    assert provision.obstacle() == out.getvalue().strip()


def test_a_failed_download_says_why_and_leaves_nothing(tools: Path) -> None:
    program(tools / "apt-get", "echo the mirror is away; exit 1")
    with pytest.raises(NotProvided, match="the mirror is away"):
        provision.provide(io.StringIO())
    assert not provision.are_there()
