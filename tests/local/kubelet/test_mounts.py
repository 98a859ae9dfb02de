"""Paths of the pod, translated to the machine's."""

from pathlib import Path

import pytest

from holdfast.local.kubelet.objects import ConfigError, RunnableContainer, VolumeMount
from holdfast.local.kubelet.volumes import Mount, link, mounts, rewrite, within

MOUNTS = [Mount("/data/cache", Path("/real/cache")), Mount("/data", Path("/real/data")), Mount("/tmp", Path("/tmp/x"))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data", "/real/data"),
        ("/data/", "/real/data/"),
        ("/data/a/b", "/real/data/a/b"),
        ("/data/cache/x", "/real/cache/x"),
        ("/database", "/database"),
        ("/other/data", "/other/data"),
        ("--dir=/data/x", "--dir=/real/data/x"),
        ("/data:/usr/bin", "/real/data:/usr/bin"),
        ("cat /data/a > /data/b", "cat /real/data/a > /real/data/b"),
        ("cat </data/a", "cat </real/data/a"),
        ('["/data"]', '["/real/data"]'),
        ("http://host/data/x", "http://host/data/x"),
        ("s3://bucket/data", "s3://bucket/data"),
        ("$ROOT/data", "$ROOT/data"),
        ("/tmp/a", "/tmp/x/a"),
        ("no path", "no path"),
    ],
)
def test_paths_below_a_mount_are_replaced(text: str, expected: str) -> None:
    assert rewrite(text, MOUNTS) == expected


def test_without_mounts_or_at_the_root_nothing_is_replaced() -> None:
    assert rewrite("/data", []) == "/data"
    assert rewrite("/data", [Mount("/", Path("/real"))]) == "/data"


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", ".."])
def test_a_path_that_leaves_its_volume_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match="leaves its volume"):
        within(tmp_path, path)


def test_a_link_does_not_lead_out_of_a_volume_either(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "out").symlink_to("/etc")
    with pytest.raises(ConfigError, match="through a link"):
        within(tmp_path / "volume", "out/passwd")


def container(*paths: str, **more: str) -> RunnableContainer:
    return RunnableContainer(
        name="main", volume_mounts=tuple(VolumeMount(name="v", mount_path=p, **more) for p in paths)
    )


def test_the_longest_path_counts(tmp_path: Path) -> None:
    found = mounts(container("/a", "/a/b/", "/c"), {"v": tmp_path}, {})
    assert [mount.path for mount in found] == ["/a/b", "/a", "/c"]


def test_a_sub_path_is_made_and_its_variables_are_replaced(tmp_path: Path) -> None:
    [mount] = mounts(container("/a", sub_path_expr="rank-$(RANK)"), {"v": tmp_path}, {"RANK": "1"})
    assert mount.target == tmp_path / "rank-1"
    assert mount.target.is_dir()


def test_a_mount_of_an_unknown_volume_is_named() -> None:
    with pytest.raises(ConfigError, match="mounts the volume v, which the pod does not have"):
        mounts(container("/a"), {}, {})


def test_links_lead_to_the_volumes_and_none_is_put_into_one(tmp_path: Path) -> None:
    (tmp_path / "outer").mkdir()
    found = [Mount("/data/inner", tmp_path / "inner"), Mount("/data", tmp_path / "outer"), Mount("/", tmp_path)]
    link(tmp_path / "root", found)
    link(tmp_path / "root", found)
    assert (tmp_path / "root" / "data").readlink() == tmp_path / "outer"
    assert not list((tmp_path / "outer").iterdir())
