"""Helm, and a control plane of its own for it: Helm wants to have made the kinds itself."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.build import helm_program
from tests.charts.program import ANOTHER, NAMESPACE, OURS, Helm, read_kinds
from tests.control_plane.server import ControlPlane
from tests.trainingjob.controller.test_monitors import DEFINITION


@pytest.fixture(scope="session")
def helm_built() -> Path:
    """Without it a test fails, since a skipped one would look like a passed one."""
    program = helm_program()
    if not program.exists():
        pytest.fail(f"Helm is not built ({program} is not there): run `make helm`", pytrace=False)
    return program


@pytest.fixture(scope="session")
def helm(helm_built: Path, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm without a cluster."""
    return Helm(helm_built, tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def chart_plane(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Without our kinds; with Prometheus', and the namespaces of a release as docs/install.md makes them."""
    with ControlPlane(tmp_path_factory.mktemp("chart-plane"), binaries).running() as plane:
        for name in (NAMESPACE, ANOTHER):
            plane.kubectl("create", "namespace", name)
            plane.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
            definition = _definition(kind)
            plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(definition))
            plane.kubectl("wait", "--for=condition=Established", "crd", definition["metadata"]["name"])
        yield plane


def _definition(kind: str) -> dict[str, Any]:
    """One of the Prometheus Operator's, which here takes any fields."""
    plural = f"{kind.lower()}s"
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {**DEFINITION["spec"], "names": names},
    }


@pytest.fixture
def installing(chart_plane: ControlPlane, helm_built: Path, tmp_path: Path) -> Iterator[Helm]:
    """Helm as the administrator of that cluster; its releases and kinds are gone after the test."""
    helm = Helm(helm_built, tmp_path, chart_plane.kubeconfig)
    yield helm
    for release in json.loads(helm("list", "--all-namespaces", "--output=json")):
        helm("uninstall", release["name"], f"--namespace={release['namespace']}", "--wait")
    read_kinds(chart_plane)
    chart_plane.kubectl("delete", "crd", "-l", OURS, "--ignore-not-found")
