"""Limits: which files the kernel is asked through. A folder of plain files stands for its control groups."""

from pathlib import Path

import pytest

from holdfast.api.core.objects import ResourceRequirements
from holdfast.local.kubelet.devices import Cgroup, Cgroups, find
from holdfast.local.kubelet.objects import RunnableContainer
from tests.local.kubelet.bench import MakeBench, shell, terminated


def limited(**limits: str) -> RunnableContainer:
    return RunnableContainer(name="main", resources=ResourceRequirements(limits=dict(limits)))


def proc(folder: Path, cgroup: str, *mounts: str) -> Path:
    """A /proc/self with these two files."""
    (folder / "proc").mkdir()
    (folder / "proc" / "cgroup").write_text(cgroup)
    (folder / "proc" / "mountinfo").write_text("".join(f"{line}\n" for line in mounts))
    return folder / "proc"


def mount(path: Path, kind: str, options: str) -> str:
    return f"30 23 0:26 / {path} rw,relatime - {kind} {kind} {options}"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The older interface: a tree for each controller, in which we are in a group of our own."""
    for controller in ("cpu", "memory"):
        (tmp_path / controller / "session").mkdir(parents=True)
    return proc(
        tmp_path,
        "4:memory:/session\n1:cpu,cpuacct:/session\n0::/\n",
        mount(tmp_path / "cpu", "cgroup", "rw,cpu,cpuacct"),
        mount(tmp_path / "memory", "cgroup", "rw,memory"),
        mount(tmp_path / "none", "cgroup2", "rw"),
    )


@pytest.fixture
def new(tmp_path: Path) -> Path:
    own = tmp_path / "unified" / "user.slice"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    return proc(tmp_path, "0::/user.slice\n", mount(tmp_path / "unified", "cgroup2", "rw"))


def test_groups_are_made_below_our_own(old: Path, tmp_path: Path) -> None:
    found = find("m1", old)
    assert found is not None
    assert found.parents == {
        "cpu": tmp_path / "cpu/session/holdfast-m1",
        "memory": tmp_path / "memory/session/holdfast-m1",
    }
    assert all(folder.is_dir() for folder in found.parents.values())


def test_the_older_interface_gets_a_group_for_each_controller(old: Path) -> None:
    found = find("m1", old)
    assert found
    group = found.make("uid", limited(cpu="1500m", memory="64Mi"))
    assert group
    cpu, memory = group.entries
    assert (cpu / "cpu.cfs_period_us").read_text() == "100000"
    assert (cpu / "cpu.cfs_quota_us").read_text() == "150000"
    assert (memory / "memory.limit_in_bytes").read_text() == str(64 * 2**20)


def test_the_newer_interface_gets_one_group(new: Path, tmp_path: Path) -> None:
    found = find("m1", new)
    assert found
    group = found.make("uid", limited(cpu="2", memory="1Gi"))
    assert group
    [entry] = group.entries
    assert entry == tmp_path / "unified/user.slice/holdfast-m1/uid-main"
    assert (entry / "cpu.max").read_text() == "200000 100000"
    assert (entry / "memory.max").read_text() == str(2**30)


def test_a_controller_that_is_not_handed_down_means_no_limits(new: Path, tmp_path: Path) -> None:
    own = tmp_path / "unified" / "user.slice"
    (own / "cgroup.controllers").write_text("pids\n")
    assert find("m1", new) is None
    assert [entry.name for entry in own.iterdir()] == ["cgroup.controllers"]


def test_a_place_that_refuses_controllers_means_no_limits(new: Path, tmp_path: Path) -> None:
    own = tmp_path / "unified" / "user.slice"
    (own / "cgroup.subtree_control").mkdir()  # writing to it fails, as it does beside other processes
    assert find("m1", new) is None
    assert not (own / "holdfast-m1").exists()


def test_a_container_without_limits_gets_no_group(old: Path) -> None:
    found = find("m1", old)
    assert found
    assert found.make("uid", limited()) is None
    assert found.make("uid", limited(**{"nvidia.com/gpu": "1"})) is None


def test_a_tiny_cpu_limit_is_raised_to_what_the_kernel_takes(new: Path) -> None:
    found = find("m1", new)
    assert found
    group = found.make("uid", limited(cpu="1m"))
    assert group
    assert (group.entries[0] / "cpu.max").read_text() == "1000 100000"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("memory.events", "low 0\nmax 9\noom 1\noom_kill 1\n", True),
        ("memory.events", "low 0\nmax 9\noom 1\noom_kill 0\n", False),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", True),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", False),
    ],
)
def test_a_kill_for_want_of_memory_is_recognised(tmp_path: Path, name: str, text: str, expected: bool) -> None:
    (tmp_path / name).write_text(text)
    assert Cgroup((tmp_path,)).oom_killed is expected


def test_a_group_that_is_gone_killed_nothing(tmp_path: Path) -> None:
    assert not Cgroup((tmp_path / "gone",)).oom_killed


def test_what_an_earlier_run_left_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / "holdfast" / "old").mkdir(parents=True)
    Cgroups(parents={"cpu": tmp_path / "holdfast"}, is_unified=False).remove()
    assert not (tmp_path / "holdfast").exists()


async def test_a_container_enters_its_group_and_is_reported_when_the_kernel_kills_it_there(
    make_bench: MakeBench, tmp_path: Path
) -> None:
    groups = tmp_path / "groups"
    groups.mkdir()
    bench = await make_bench(cgroups=Cgroups(parents={"memory": groups}, is_unified=True))
    script = f"for group in {groups}/*; do echo 'oom_kill 1' > $group/memory.events; done; kill -KILL $$$$"
    pod = await bench.ended(shell(script, resources={"limits": {"memory": "64Mi"}}))
    assert (terminated(pod)["reason"], terminated(pod)["exitCode"]) == ("OOMKilled", 137)
    group = groups / f"{pod.metadata.uid}-main"
    assert (group / "cgroup.procs").read_text() == "0"
    assert (group / "memory.max").read_text() == str(64 * 2**20)
