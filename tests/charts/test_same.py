"""The chart and the kustomizations install the same: what is changed in one and not in the other is found here."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast import __version__
from tests.charts.program import CHART, MANIFESTS, Helm, Name, Object, by_name, find, kustomized, objects

# Helm's own; on the metadata of an object, never on the pods that it makes.
HELM_LABELS = {
    "app.kubernetes.io/instance": "holdfast",
    "app.kubernetes.io/managed-by": "Helm",
    "app.kubernetes.io/version": __version__,
    "helm.sh/chart": f"holdfast-{__version__}",
}
KEEP = {"helm.sh/resource-policy": "keep"}
# Helm wants the namespace of a release to be there before; docs/install.md says how it is made.
ONLY_KUSTOMIZE = {Name("Namespace", "", "holdfast-system")}
ONLY_CHART = {Name("Pod", "holdfast-system", "holdfast-test")}


@pytest.fixture
def kustomize(binaries: Path, tmp_path: Path) -> Any:
    return lambda *folders: [each for name in folders for each in kustomized(binaries, MANIFESTS / name, tmp_path)]


def definitions() -> list[Object]:
    return [each for path in sorted((MANIFESTS / "crds").iterdir()) for each in objects(path.read_text())]


def without_helms(one: Object) -> Object:
    """An object of the chart as kustomize would have made it."""
    made = copy.deepcopy(one)
    metadata = made["metadata"]
    if made["kind"] == "CustomResourceDefinition":
        assert metadata.pop("annotations") == KEEP
        return made
    labels = metadata["labels"]
    assert {name: labels.pop(name) for name in HELM_LABELS} == HELM_LABELS
    return made


def in_any_order(one: Object) -> Object:
    """The rules of a role have no order."""
    return {**one, "rules": sorted(one["rules"], key=str)} if "rules" in one else one


def assert_same(chart: list[Object], kustomize: list[Object]) -> None:
    of_chart, of_kustomize = by_name(chart), by_name(kustomize)
    assert of_chart.keys() - of_kustomize.keys() == ONLY_CHART
    assert of_kustomize.keys() - of_chart.keys() == ONLY_KUSTOMIZE
    for name in of_chart.keys() & of_kustomize.keys():
        assert in_any_order(without_helms(of_chart[name])) == in_any_order(of_kustomize[name]), name


def test_with_nothing_set_it_installs_what_the_operators_kustomization_does(helm: Helm, kustomize: Any) -> None:
    assert_same(helm.rendered(), definitions() + kustomize("operator", "users"))


def test_with_agents_it_installs_what_theirs_does_too(helm: Helm, kustomize: Any) -> None:
    chart = helm.rendered({"nodeAgent": {"enabled": True}})
    assert_same(chart, definitions() + kustomize("operator", "users", "node"))


def test_without_spot_it_leaves_out_what_lies_in_that_file(helm: Helm, kustomize: Any) -> None:
    left_out = by_name(objects((MANIFESTS / "operator" / "spot.yaml").read_text()))
    assert len(left_out) > 5
    rest = [one for name, one in by_name(kustomize("operator", "users")).items() if name not in left_out]
    assert_same(helm.rendered({"spot": {"enabled": False}}), definitions() + rest)


@pytest.mark.parametrize(
    ("component", "values"),
    [
        ("monitoring", {"monitoring": {"enabled": True, "dashboards": True}}),
        ("signed-kubelet-certificates", {"nodeAgent": {"enabled": True, "signedKubeletCertificates": True}}),
    ],
)
def test_a_switch_does_what_its_component_does(
    helm: Helm, kustomize: Any, tmp_path: Path, component: str, values: dict[str, Any]
) -> None:
    chosen = ["operator", "users", *(["node"] if "nodeAgent" in values else [])]
    (tmp_path / "objects.yaml").write_text(yaml.safe_dump_all(kustomize(*chosen)))
    for folder in ("components", "monitoring"):
        shutil.copytree(MANIFESTS / folder, tmp_path / folder)
    written = {"resources": ["objects.yaml"], "components": [f"components/{component}"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(written))
    assert_same(helm.rendered(values), definitions() + kustomize(tmp_path))


def test_its_versions_are_those_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["appVersion"], chart["version"]) == (__version__, __version__)


def test_it_carries_the_definitions_that_are_generated() -> None:
    carried = {path.name: path.read_text() for path in (CHART / "files" / "crds").iterdir()}
    assert carried == {path.name: path.read_text() for path in (MANIFESTS / "crds").iterdir()}


def test_it_carries_the_alerts_and_dashboards() -> None:
    rules, boards = MANIFESTS / "monitoring" / "rules.yaml", (MANIFESTS / "monitoring" / "dashboards").iterdir()
    carried = {path.name: path.read_text() for path in (CHART / "files" / "monitoring").iterdir()}
    assert carried == {path.name: path.read_text() for path in (rules, *boards)}


def test_another_namespace_and_other_agents_are_named_everywhere(helm: Helm) -> None:
    """No template says holdfast-system or the namespace holdfast-node by itself."""
    values = {"nodeAgent": {"enabled": True, "namespace": {"name": "agents"}}, "monitoring": {"enabled": True}}
    moved = helm.rendered(values, namespace="training-platform")
    usual = helm.rendered({**values, "nodeAgent": {"enabled": True}})

    def renamed(value: Any, key: str = "") -> Any:
        match value:
            case dict():
                return {key: renamed(each, key) for key, each in value.items()}
            case list():
                return [renamed(each, key) for each in value]
            case "holdfast-node" if key in ("namespace", "agents' namespace", "matchNames"):
                return "agents"
            case str():
                accounts = value.replace("serviceaccount:holdfast-node:", "serviceaccount:agents:")
                return accounts.replace("holdfast-system", "training-platform")
            case _:
                return value

    expected = [renamed(one) for one in usual]
    find(expected, "Namespace")["metadata"]["name"] = "agents"
    assert by_name(moved) == by_name(expected)
