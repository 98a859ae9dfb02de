"""Where real nodes can't be, it is said what is missing, and nothing is tried."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.control_plane.build import HERE as CONTROL_PLANE
from tests.frameworks.provision import NotProvided
from tests.nodes import build, cgroups, provision
from tests.nodes.cgroups import Hierarchy
from tests.nodes.provision import PLUGINS_PACKAGE, missing_packages, obstacles, provide

ROOT = Path(__file__).parents[2]


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that can have nodes, whatever this one is."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(provision, "_namespaces", lambda: "")
    monkeypatch.setattr(provision, "_control_groups", lambda: "")
    monkeypatch.setattr(provision, "missing_packages", list)
    monkeypatch.setattr(provision, "provide_wheels", lambda out: None)
    monkeypatch.setattr(provision, "provide_criu", lambda out: None)
    monkeypatch.setattr(provision, "provide_login", lambda out: None)


def test_a_user_who_is_not_root_gets_that_as_the_reason(able: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert obstacles() == ["root, who may make network namespaces, mounts and control groups"]


def test_another_system_than_linux_is_named_as_the_reason(able: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert obstacles() == ["Linux"]


def test_a_kernel_that_refuses_namespaces_is_quoted(able: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "_namespaces", lambda: "unshare failed: Operation not permitted")
    (said,) = obstacles()
    assert said.endswith("(unshare failed: Operation not permitted)")


def test_packages_are_an_obstacle_only_where_they_can_t_be_installed(
    able: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provision, "missing_packages", lambda: ["iproute2", "runc"])
    monkeypatch.setattr(provision, "can_install", lambda: False)
    assert obstacles() == ["the package iproute2", "the package runc"]
    monkeypatch.setattr(provision, "can_install", lambda: True)
    assert obstacles() == []


def test_what_is_not_on_the_path_is_a_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "_path", lambda: str(tmp_path))
    monkeypatch.setattr(provision, "PLUGIN_FOLDERS", (tmp_path,))
    assert missing_packages() == sorted({*provision.PACKAGES.values(), PLUGINS_PACKAGE})
    for name in (*provision.PACKAGES, *provision.PLUGINS):
        (tmp_path / name).touch(mode=0o755)
    assert missing_packages() == []


def test_controllers_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    only_cpu = Hierarchy(controllers=frozenset({"cpu", "cpuacct"}), unified=False, parent=Path("/nowhere"))
    monkeypatch.setattr(cgroups, "here", lambda: [only_cpu])
    assert provision._control_groups() == "control groups that can limit memory, pids"


def test_control_groups_that_are_read_only_are_an_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = Hierarchy(controllers=cgroups.NEEDED, unified=False, parent=tmp_path / "not" / "there")
    monkeypatch.setattr(cgroups, "here", lambda: [everything])
    assert provision._control_groups().startswith("control groups that can be written (No such file or directory: ")


def test_where_nodes_can_t_be_nothing_is_built(able: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    out = io.StringIO()
    assert provide(out, make=lambda: pytest.fail("it built")) == 0
    assert out.getvalue().startswith("The tests on real nodes are not run: they need root")


def test_packages_are_installed_before_the_build(able: None, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(provision, "missing_packages", lambda: ["runc"])
    monkeypatch.setattr(provision, "can_install", lambda: True)
    monkeypatch.setattr(provision, "install", lambda *packages: done.append(f"installed {packages}"))

    def make() -> int:
        done.append("built")
        return 0

    out = io.StringIO()
    assert provide(out, make=make) == 0
    assert done == ["installed ('runc',)", "built"]
    assert out.getvalue() == "Installing for the tests, once: runc\n"


def test_a_lack_that_only_installed_programs_show_is_said_before_the_build(
    able: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(*_: str) -> None:
        monkeypatch.setattr(provision, "_namespaces", lambda: "not permitted")

    monkeypatch.setattr(provision, "missing_packages", lambda: ["iproute2"])
    monkeypatch.setattr(provision, "can_install", lambda: True)
    monkeypatch.setattr(provision, "install", install)
    out = io.StringIO()
    assert provide(out, make=lambda: pytest.fail("it built")) == 0
    assert out.getvalue().endswith("of their own (not permitted).\n")


def test_without_its_programs_a_machine_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "_path", lambda: str(tmp_path))
    assert provision._namespaces() == ""
    for name in ("ip", "mount", "unshare"):
        (tmp_path / name).write_text("#!/bin/sh\necho no such luck >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    assert provision._namespaces() == "no such luck"


def test_the_command_fails_with_the_reason_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise NotProvided("runc was not installed; the disk is full")

    monkeypatch.setattr(provision, "provide", fail)
    assert provision.main() == 1
    assert capsys.readouterr().err == "runc was not installed; the disk is full\n"


def collected(
    tmp_path: Path, setup: str, *options: str, tests: str = "tests/nodes/test_lab.py"
) -> subprocess.CompletedProcess[str]:
    """What pytest makes of the tests on nodes, on another machine than this one."""
    (tmp_path / "elsewhere.py").write_text(setup)
    command = [sys.executable, "-m", "pytest", "-p", "elsewhere", tests, *options]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_where_nodes_can_t_be_their_tests_are_deselected_and_the_summary_says_so(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    setup = "from tests.nodes import provision\nprovision.obstacles = lambda: ['a sword', 'a shield']\n"
    done = collected(tmp_path, setup, *options)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout
    said = re.findall(r"The tests on real nodes are not run: they need a sword; a shield. \(\d+ tests\)", done.stdout)
    assert len(said) == 1


def test_where_nodes_could_be_their_tests_fail_and_name_the_command(tmp_path: Path) -> None:
    setup = (
        "from tests.nodes import provision\nprovision.obstacles = list\nprovision.missing_packages = lambda: ['runc']\n"
    )
    done = collected(tmp_path, setup, "-k", "sidecar")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "real nodes need what is not there (runc" in done.stdout
    assert "run `make nodes`" in done.stdout


def test_kubelet_and_kubeadm_are_of_the_control_planes_own_version() -> None:
    modules = {one.name: one.module for one in build.BINARIES}
    assert (modules["kubelet"], modules["kubeadm"]) == (CONTROL_PLANE, CONTROL_PLANE)


def test_the_packages_of_the_image_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(command: list[str], _: str) -> None:
        Path(command[command.index("--dest") + 1], "one.whl").touch()

    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    monkeypatch.setattr(provision, "run", fetch)
    out = io.StringIO()
    provision.provide_wheels(out)
    assert out.getvalue() == f"Fetching the packages of the image for the tests into {provision.wheels()}, once.\n"
    assert [one.name for one in provision.wheels().iterdir()] == ["one.whl"]
    provision.provide_wheels(io.StringIO())
    assert list(provision.wheels().parent.iterdir()) == [provision.wheels()]
