"""What the node tells about itself, and the names of old runs on its disk."""

from pathlib import Path

import pytest

from holdfast.node.facts import HostFacts, read_host_facts

X86 = "processor\t: 0\nflags\t\t: fpu sse avx2\n\nprocessor\t: 1\nflags\t\t: fpu sse\n"
ARM = "processor : 0\nFeatures : fp asimd\n"


@pytest.mark.parametrize(("cpuinfo", "flags"), [(X86, ("fpu", "sse")), (ARM, ("asimd", "fp")), ("", ())])
def test_the_flags_are_those_that_every_processor_has(tmp_path: Path, cpuinfo: str, flags: tuple[str, ...]) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert read_host_facts(tmp_path, tmp_path).cpu_flags == flags


def test_this_machine_has_a_boot_id_and_a_cgroup_version() -> None:
    facts = read_host_facts()
    assert len(facts.boot_id) == 36
    assert facts.cgroup_version in ("v1", "v2")


def test_the_cgroup_version_is_seen_from_the_root(tmp_path: Path) -> None:
    assert read_host_facts(tmp_path, tmp_path) == HostFacts(cgroup_version="v1")
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    assert read_host_facts(tmp_path, tmp_path).cgroup_version == "v2"
