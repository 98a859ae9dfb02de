"""A checkpoint goes on only where the node may, can, and has the processor for it; else it is said what is missing."""

import msgspec
import pytest

from holdfast.pods.restore.cpu import programs_flags
from holdfast.pods.restore.nodes import choose_nodes, restorable_image, runtime_version
from tests.pods.restore.restores import BASE, IMAGE, node


def names(*nodes: object, wanted: str = "") -> list[str]:
    return [each.name for each in choose_nodes(nodes, [IMAGE], wanted).fit]  # type: ignore[arg-type]


def test_only_nodes_with_the_label_are_chosen() -> None:
    assert names(node("n2"), node("n1"), node("n3", restore="")) == ["n1", "n2"]
    assert names(node("n1", restore="false")) == []


def test_where_no_node_has_the_label_the_message_says_what_to_switch_on_for_every_runtime() -> None:
    message = choose_nodes([node(restore="")], [IMAGE]).message
    assert "no node has the label holdfast.dev/restore=true" in message
    assert "with containerd set enable_experimental_restore_via_create = true" in message
    assert 'with cri-o set container_level_enabled = "checkpoint_restore"' in message
    assert "holdfast doctor --node NODE --registry REGISTRY" in message


def test_a_processor_must_have_every_flag_that_a_program_may_use() -> None:
    choice = choose_nodes([node("old", flags="sse2"), node("new")], [IMAGE])
    assert [each.name for each in choice.fit] == ["new"]
    assert choice.unfit == {"old": "its CPU has not avx2, which container trainer may use"}


def test_many_missing_flags_are_counted() -> None:
    image = msgspec.structs.replace(IMAGE, cpu_flags=frozenset({f"flag{number}" for number in range(7)}))
    (why,) = choose_nodes([node()], [image]).unfit.values()
    assert why == "its CPU has not flag0, flag1, flag2, flag3, flag4 and 2 more, which container trainer may use"


def test_flags_that_only_the_kernel_uses_do_not_matter_and_unknown_ones_do() -> None:
    assert programs_flags(["constant_tsc", "hypervisor", "avx2", "of_next_year"]) == {"avx2", "of_next_year"}


def test_a_node_without_cpu_flags_is_not_chosen() -> None:
    (why,) = choose_nodes([node(flags=None)], [IMAGE]).unfit.values()
    assert "run holdfast's agent on it" in why


def test_an_image_without_cpu_flags_goes_anywhere() -> None:
    image = msgspec.structs.replace(IMAGE, cpu_flags=frozenset())
    assert choose_nodes([node(flags=None)], [image]).fit


@pytest.mark.parametrize(
    ("differing", "why"),
    [
        ({"ready": "Unknown"}, "it is not ready"),
        ({"unschedulable": True}, "it is cordoned"),
        ({"runtime": "docker://27.0"}, "its runtime is docker 27.0, which creates no containers from checkpoints"),
        ({"runtime": "cri-o://1.36.6"}, "it runs cri-o 1.36.6, and container trainer was saved by containerd 2.2.9"),
    ],
)
def test_a_node_that_can_not_run_it_says_why(differing: dict[str, object], why: str) -> None:
    choice = choose_nodes([node(**differing)], [IMAGE])  # type: ignore[arg-type]
    assert choice.unfit == {"n1": why}
    assert choice.message == f"no node with the label holdfast.dev/restore can run it: n1: {why}"


@pytest.mark.parametrize(
    ("runtime", "advice"),
    [
        ("containerd://2.2.6", "use 2.2.7 or 2.3.4 or newer"),
        ("containerd://2.3.3", "use 2.2.7 or 2.3.4 or newer"),
        ("containerd://2.1.9", "use 2.2.7 or 2.3.4 or newer"),
        ("containerd://1.7.30", "use 2.2.7 or 2.3.4 or newer"),
        ("containerd://2.4.0", "use 2.3"),
        ("containerd://3.0.1", "use 2.3"),
        ("cri-o://1.34.13", "use 1.34.14, 1.35.9, 1.36.6 or newer"),
        ("cri-o://1.33.20", "use 1.34.14, 1.35.9, 1.36.6 or newer"),
    ],
)
def test_versions_that_can_not_restore_or_should_not_are_refused_with_those_that_may(runtime: str, advice: str) -> None:
    (why,) = choose_nodes([node(runtime=runtime)], []).unfit.values()
    assert why.endswith(advice)


@pytest.mark.parametrize("runtime", ["containerd://2.2.7", "containerd://v2.3.4", "cri-o://1.36.6", "cri-o://1.37.0"])
def test_versions_that_may_restore(runtime: str) -> None:
    assert choose_nodes([node(runtime=runtime)], []).fit


def test_the_node_that_a_user_names_is_the_only_one_that_is_looked_at() -> None:
    assert names(node("n1"), node("n2"), wanted="n2") == ["n2"]
    assert choose_nodes([node("n1")], [IMAGE], "n9").unfit == {"n9": "there is no such node"}


def test_a_cluster_without_nodes_is_said_to_be_one() -> None:
    assert choose_nodes([], [IMAGE]).message == "the cluster has no nodes"


def test_an_image_is_known_by_its_labels() -> None:
    labels = {"base-image": BASE, "runtime": "containerd 2.2.9", "cpu-flags": "avx2 constant_tsc sse2"}
    assert restorable_image("trainer", IMAGE.image, labels) == IMAGE


def test_a_base_image_that_no_registry_has_is_not_fetched() -> None:
    assert IMAGE.fetched_base_image == BASE
    assert restorable_image("trainer", IMAGE.image, {"base-image": "sha256:12"}).fetched_base_image == ""


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("containerd://2.2.9", "containerd", (2, 2, 9)),
        ("CRI-O 1.36.6-dev", "cri-o", (1, 36, 6)),
        ("containerd v2.3.4+unknown", "containerd", (2, 3, 4)),
        (f"containerd {'9' * 5000}", "containerd", ()),
        ("", "", ()),
    ],
)
def test_versions_of_nodes_and_of_images_are_read_alike(text: str, name: str, version: tuple[int, ...]) -> None:
    assert runtime_version(text) == (name, version)
