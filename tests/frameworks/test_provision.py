"""How the frameworks come to be there: installed once, whole or not at all, and never missing in silence."""

import fcntl
import io
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.control_plane.waiting import eventually
from tests.frameworks import provision
from tests.frameworks.provision import NotProvided, install_torch, jax_folder, provide_jax, provide_torch, python_in

UNKNOWN = f"no-such-package==1 --hash=sha256:{'0' * 64}\n"

# Writes down what it is asked, and then does as it is told.
APT_GET = """#!/bin/sh
echo "$DEBIAN_FRONTEND $*" >> {asked}
{then}
"""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing here may reach an index, or the user's cache."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    """A requirement file that asks for nothing."""
    file = tmp_path / "requirements.txt"
    file.write_text("# nothing\n")
    return file


def apt_get(folder: Path, monkeypatch: pytest.MonkeyPatch, then: str = "") -> Path:
    """Put it first on the PATH; what it is asked is in the file returned."""
    asked = folder / "asked"
    program = folder / "bin" / "apt-get"
    program.parent.mkdir()
    program.write_text(APT_GET.format(asked=asked, then=then))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return asked


def test_the_environment_is_made_with_an_interpreter_of_its_own(requirements: Path) -> None:
    out = io.StringIO()
    python = provide_jax(out, requirements)
    said = subprocess.run([python, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True)
    assert Path(said.stdout.strip()) == jax_folder(requirements)
    assert out.getvalue().splitlines()[-1] == f"JAX is there: {jax_folder(requirements)}"


def test_a_second_run_installs_nothing(requirements: Path) -> None:
    folder = provide_jax(io.StringIO(), requirements).parent.parent
    (folder / "mark").touch()
    out = io.StringIO()
    provide_jax(out, requirements)
    assert out.getvalue() == f"JAX is there: {folder}\n"
    assert (folder / "mark").exists()


def test_an_interrupted_installation_is_made_anew(requirements: Path) -> None:
    folder = provide_jax(io.StringIO(), requirements).parent.parent
    (folder / provision.INSTALLED).unlink()
    (folder / "half").touch()
    assert python_in(folder) is None
    assert provide_jax(io.StringIO(), requirements) == python_in(folder)
    assert not (folder / "half").exists()


def test_an_environment_whose_interpreter_is_gone_is_made_anew(requirements: Path) -> None:
    python = provide_jax(io.StringIO(), requirements)
    python.unlink()
    python.symlink_to("/no/longer/there")
    assert python_in(python.parent.parent) is None
    subprocess.run([provide_jax(io.StringIO(), requirements), "-c", ""], check=True)


def test_other_requirements_have_another_folder(requirements: Path) -> None:
    before = jax_folder(requirements)
    requirements.write_text("# nothing else\n")
    assert jax_folder(requirements) != before


def test_a_package_that_cant_be_had_is_named_and_nothing_counts_as_installed(requirements: Path) -> None:
    requirements.write_text(UNKNOWN)
    with pytest.raises(NotProvided, match=r"JAX was not installed(.|\n)*no-such-package"):
        provide_jax(io.StringIO(), requirements)
    assert python_in(jax_folder(requirements)) is None


async def test_a_second_installation_waits_for_the_first(requirements: Path) -> None:
    folder = jax_folder(requirements).parent
    folder.mkdir(parents=True)
    out = io.StringIO()
    second = threading.Thread(target=provide_jax, args=(out, requirements))

    async def said() -> str:
        return out.getvalue()

    with (folder / "lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second.start()
        await eventually(said, lambda text: "Waiting for another installation" in text, what="it waits")
        assert not jax_folder(requirements).exists()
    second.join()
    assert python_in(jax_folder(requirements))


def test_torch_is_looked_for_with_the_interpreter_that_would_run_it(requirements: Path, tmp_path: Path) -> None:
    python = provide_jax(io.StringIO(), requirements)
    assert not provision.torch_is_there(python)
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    (site / "torch.py").touch()
    assert provision.torch_is_there(python)
    assert not provision.torch_is_there(tmp_path / "no-python")


def test_apt_get_is_asked_to_update_and_then_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = apt_get(tmp_path, monkeypatch)
    install_torch()
    options = "noninteractive -q -o DPkg::Lock::Timeout=600"
    assert asked.read_text().splitlines() == [
        f"{options} update",
        f"{options} install -y --no-install-recommends python3-torch",
    ]


def test_the_last_output_of_apt_get_is_printed_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = apt_get(tmp_path, monkeypatch, then="echo 'E: no sources' >&2; exit 100")
    with pytest.raises(NotProvided, match=r"python3-torch was not installed; `apt-get .* update` said last:\nE: no so"):
        install_torch()
    assert len(asked.read_text().splitlines()) == 1


@pytest.mark.parametrize(("user", "distribution"), [(1000, "debian"), (0, "fedora"), (0, "")])
def test_where_it_cant_be_installed_the_package_is_named_and_nothing_is_tried(
    user: int, distribution: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = apt_get(tmp_path, monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(provision, "_distribution", lambda: distribution)
    monkeypatch.setattr(provision, "torch_is_there", lambda: False)
    out = io.StringIO()
    provide_torch(out)
    assert out.getvalue().startswith("The PyTorch tests are not run: they need Debian's package python3-torch")
    assert not asked.exists()


def test_root_on_debian_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = apt_get(tmp_path, monkeypatch)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(provision, "_distribution", lambda: "debian")
    monkeypatch.setattr(provision, "torch_is_there", lambda: False)
    provide_torch(io.StringIO())
    assert asked.read_text().splitlines()[-1].endswith("python3-torch")


def test_the_command_fails_with_the_reason_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> Path:
        raise NotProvided("JAX was not installed; the disk is full")

    monkeypatch.setattr(provision, "provide_jax", fail)
    assert provision.main() == 1
    assert capsys.readouterr().err == "JAX was not installed; the disk is full\n"


def collected(tmp_path: Path, *, installable: bool) -> subprocess.CompletedProcess[str]:
    """What pytest makes of the PyTorch tests on a machine without PyTorch."""
    plugin = (
        "from tests.frameworks import provision\n"
        "provision.torch_is_there = lambda: False\n"
        f"provision.torch_can_be_installed = lambda: {installable}\n"
    )
    (tmp_path / "without_torch.py").write_text(plugin)
    command = [sys.executable, "-m", "pytest", "-p", "without_torch", "tests/frameworks/test_pytorch.py", "-k", "both"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    root = Path(__file__).parents[2]
    return subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)


def test_where_torch_cant_be_had_its_tests_are_deselected_and_the_summary_says_so(tmp_path: Path) -> None:
    done = collected(tmp_path, installable=False)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout
    assert re.search(re.escape(provision.without_torch()) + r" \([1-9]\d* tests\)", done.stdout)


def test_where_torch_could_be_had_its_tests_fail_and_name_the_command(tmp_path: Path) -> None:
    done = collected(tmp_path, installable=True)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "PyTorch is not installed for the tests: run `make frameworks`" in done.stdout
