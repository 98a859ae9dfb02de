"""Machines get control groups below those that the tests run in, whichever version the kernel has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nodes import cgroups
from tests.nodes.cgroups import Groups, hierarchies, processes, remove

ONE = """\
30 20 0:26 / {0}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
31 20 0:27 / {0}/memory rw - cgroup cgroup rw,memory
32 20 0:28 / {0}/systemd rw - cgroup cgroup rw,xattr,name=systemd
33 20 0:29 / {0}/unified rw - cgroup2 cgroup2 rw
34 20 0:30 / /tmp rw - tmpfs tmpfs rw
"""
TWO = "30 20 0:26 / {0} rw - cgroup2 cgroup2 rw,nsdelegate\n"


def test_with_version_one_each_hierarchy_has_a_place_of_its_own(tmp_path: Path) -> None:
    membership = "4:name=systemd:/\n3:memory:/ci/job-7\n2:cpu,cpuacct:/\n0::/ci\n"
    found = hierarchies(ONE.format(tmp_path), membership)
    assert [(sorted(one.controllers), one.parent) for one in found] == [
        (["name=systemd"], tmp_path / "systemd"),
        (["memory"], tmp_path / "memory" / "ci" / "job-7"),
        (["cpu", "cpuacct"], tmp_path / "cpu,cpuacct"),
        ([], tmp_path / "unified" / "ci"),
    ]


def test_a_hierarchy_that_is_not_mounted_is_passed_over(tmp_path: Path) -> None:
    found = hierarchies(ONE.format(tmp_path), "5:devices:/\n3:memory:/\n")
    assert [one.parent for one in found] == [tmp_path / "memory"]


def test_a_container_that_sees_only_its_own_part_finds_itself_in_it(tmp_path: Path) -> None:
    mounts = f"31 20 0:27 /docker/abc {tmp_path}/memory rw - cgroup cgroup rw,memory\n"
    (found,) = hierarchies(mounts, "3:memory:/docker/abc/inner\n")
    assert found.parent == tmp_path / "memory" / "inner"


def test_with_version_two_alone_machines_are_below_the_root_with_what_it_hands_on(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (found,) = hierarchies(TWO.format(tmp_path), "0::/user.slice/session-3.scope\n")
    assert (found.parent, sorted(found.controllers)) == (tmp_path, ["cpu", "memory", "pids"])


def test_with_version_two_only_the_first_process_is_in_the_group_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
    monkeypatch.setattr(cgroups, "here", lambda: hierarchies(TWO.format(tmp_path), "0::/\n"))
    groups = Groups("one")
    assert groups.first == [tmp_path / "one" / "cgroup.procs"]
    assert groups.later == [tmp_path / "one" / "init" / "cgroup.procs"]


def test_a_new_group_may_use_the_processors_that_its_parent_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = f"31 20 0:27 / {tmp_path} rw - cgroup cgroup rw,cpuset\n"
    monkeypatch.setattr(cgroups, "here", lambda: hierarchies(mounts, "3:cpuset:/\n"))
    own = tmp_path / "one"
    own.mkdir()
    for folder, cpus in ((tmp_path, "0-3"), (own, "")):
        (folder / "cgroup.clone_children").touch()
        (folder / "cpuset.cpus").write_text(cpus)
        (folder / "cpuset.mems").write_text(cpus)
    Groups("one").make()
    assert (own / "cpuset.cpus").read_text() == "0-3"


def test_whoever_is_in_a_group_is_killed_when_it_is_removed(real_nodes: None) -> None:
    groups = Groups(f"holdfast-test-{os.getpid()}")
    groups.make()
    try:
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as sleeper:
            for file in groups.first:
                file.write_text(str(sleeper.pid))
            assert processes(groups.folders) == {sleeper.pid}
            remove(groups.folders)
            assert sleeper.wait() == -9
    finally:
        remove(groups.folders)
    assert not [folder for folder in groups.folders if folder.exists()]
