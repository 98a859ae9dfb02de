"""The description is fetched once, checked by its digest, and alone kept."""

import io
import zipfile
from pathlib import Path

import pytest

from tests.frameworks.provision import NotProvided
from tests.providers.compute_engine import provision
from tests.providers.compute_engine.description import Description
from tests.providers.compute_engine.provision import FILE, IN_PACKAGE, description_file, main, provide


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Its commands; it delivers a package with a small description."""
    commands: list[list[str]] = []

    def run(command: list[str], failed: str) -> None:
        commands.append(command)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "google_api_python_client-1-py3-none-any.whl", "w") as archive:
            archive.writestr(IN_PACKAGE, "{}")
            archive.writestr("googleapiclient/discovery_cache/documents/other.json", "{}")

    monkeypatch.setattr(provision, "run", run)
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    return commands


def test_one_file_of_the_package_is_kept(pip: list[list[str]]) -> None:
    file = provide(io.StringIO())
    assert file == description_file()
    assert file.read_text() == "{}"
    assert [path.name for path in file.parent.iterdir()] == [FILE]
    (command,) = pip
    assert {"download", "--no-deps", "--require-hashes"} <= set(command)


def test_what_is_there_is_not_fetched_again(pip: list[list[str]]) -> None:
    provide(io.StringIO())
    out = io.StringIO()
    provide(out)
    assert len(pip) == 1
    assert out.getvalue() == f"Google's description of Compute Engine is there: {description_file()}\n"


def test_another_version_is_another_file(pip: list[list[str]], tmp_path: Path) -> None:
    other = tmp_path / "requirements.txt"
    other.write_text("google-api-python-client==1 --hash=sha256:00\n")
    assert provide(io.StringIO(), other) != provide(io.StringIO())
    assert len(pip) == 2


def test_a_failure_leaves_nothing_and_says_why(
    pip: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(command: list[str], failed: str) -> None:
        raise NotProvided(f"{failed}; pip said last: no network")

    monkeypatch.setattr(provision, "run", fail)
    assert main() == 1
    assert "the description of Compute Engine was not fetched; pip said last: no network" in capsys.readouterr().err
    assert not description_file().exists()
    assert not list(description_file().parent.iterdir())


def test_the_description_is_of_the_api_that_requests_without_a_version_get(contract: Description) -> None:
    assert contract.version == "v1"
