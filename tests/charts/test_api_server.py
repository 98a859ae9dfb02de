"""The chart on a real API server: taken as it is, installed, upgraded, taken away."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.program import (
    ANOTHER,
    CHART,
    MANIFESTS,
    NAMESPACE,
    OURS,
    Helm,
    HelmFailed,
    Object,
    find,
    install,
    read_kinds,
    uninstall,
    upgrade,
)
from tests.control_plane.server import ControlPlane
from tests.operator.manifests import training_job

AGENTS = "holdfast-node"
EVERYTHING: dict[str, Any] = {
    "image": {
        "repository": "registry.example.com/team/holdfast",
        "digest": f"sha256:{'a' * 64}",
        "pullPolicy": "Always",
    },
    "imagePullSecrets": ["team"],
    "operator": {
        "replicas": 3,
        "namespaces": ["default"],
        "antiAffinity": "required",
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists", "effect": "NoSchedule"}],
        "priorityClassName": "system-cluster-critical",
        "podAnnotations": {"team": "ml"},
        "extraArgs": ["--workers=20"],
    },
    "trainings": {"forbid": ["hostPath"], "frameworkImages": {"jax": "repo/jax:1"}, "claimSize": "1Ti"},
    "spot": {"ownCloudIdentity": ["default"]},
    "nodeAgent": {"enabled": True, "signedKubeletCertificates": True, "podAnnotations": {"team": "ml"}},
    "networkPolicy": {
        "enabled": True,
        "metricsFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}],
        "nodeCIDRs": ["10.0.0.0/8", "fd00::/8"],
        "registries": {"cidrs": ["10.0.0.0/8"], "ports": [443, 5000]},
    },
    "monitoring": {"enabled": True, "dashboards": True},
}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"nodeAgent": {"enabled": True}},
        {"spot": {"enabled": False}, "crds": {"keep": False}, "userRoles": {"create": False, "aggregate": False}},
        {"networkPolicy": {"enabled": True}},
        EVERYTHING,
    ],
    ids=["nothing set", "agents", "least", "policies", "everything"],
)
def test_the_api_server_takes_every_object(chart_plane: ControlPlane, helm: Helm, values: dict[str, Any]) -> None:
    """With its own strict look at every field: one that it does not know is refused."""
    rendered = helm.rendered(values)
    # An object in a namespace that is not there yet can't be tried without making it.
    there = [
        {**one, "metadata": {**one["metadata"], "namespace": ANOTHER}} if _in_agents(one) else one for one in rendered
    ]
    told = chart_plane.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", input=yaml.safe_dump_all(there)
    )
    assert told.count("serverside-applied (server dry run)") == len(rendered)
    assert "Warning" not in told


def _in_agents(one: Object) -> bool:
    return bool(one["metadata"].get("namespace") == AGENTS)


def test_its_pods_keep_to_the_restricted_profile(chart_plane: ControlPlane, helm: Helm) -> None:
    """The namespace enforces the profile: a pod that broke it would be refused here."""
    rendered = helm.rendered()
    spec = find(rendered, "Deployment")["spec"]["template"]["spec"]
    test = find(rendered, "Pod")
    for name, body in (("operator", {**spec, "serviceAccountName": "default"}), ("test", test["spec"])):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": body}
        told = chart_plane.kubectl("create", "--dry-run=server", "-f", "-", input=yaml.safe_dump(pod))
        assert "created (server dry run)" in told


def chart_of_before(folder: Path) -> Path:
    """The chart with another version, and one field less in a definition."""
    chart = folder / "before"
    shutil.copytree(CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "0.0.9"}))
    path = chart / "files" / "crds" / "ml.example.com_trainingjobs.yaml"
    definition = yaml.safe_load(path.read_text())
    schema = _schema(definition)
    schema["x-kubernetes-validations"] = []
    spec = schema["properties"]["spec"]
    spec["x-kubernetes-validations"] = []
    del spec["properties"]["networking"]
    path.write_text(yaml.safe_dump(definition, sort_keys=False))
    return chart


def _schema(definition: Object) -> dict[str, Any]:
    schema: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def test_an_upgrade_updates_the_definitions_and_keeps_jobs_and_pods(
    chart_plane: ControlPlane, installing: Helm, tmp_path: Path
) -> None:
    install(installing, chart_of_before(tmp_path), operator={"replicas": 3})
    chart_plane.kubectl("wait", "--for=condition=Established", "crd/trainingjobs.ml.example.com")
    chart_plane.kubectl("apply", "-n", "default", "-f", "-", input=training_job("bert"))

    def seen() -> tuple[str, str]:
        job = chart_plane.kubectl("get", "tj/bert", "-n", "default", "-o", "jsonpath={.metadata.uid}")
        what = ("deployment/holdfast-operator", "-n", NAMESPACE, "-o", "jsonpath={.spec.replicas} {.spec.template}")
        return job, chart_plane.kubectl("get", *what)

    def networking() -> bool:
        definition = json.loads(chart_plane.kubectl("get", "crd/trainingjobs.ml.example.com", "-o", "json"))
        return "networking" in _schema(definition)["properties"]["spec"]["properties"]

    before = seen()
    assert not networking()
    installing("upgrade", "holdfast", str(CHART), f"--namespace={NAMESPACE}", "--reset-then-reuse-values")
    assert networking()
    assert seen() == before, "no pod of the operator is replaced, and no job made anew, for the chart's sake alone"
    upgrade(installing, nodeAgent={"enabled": True})
    assert "holdfast-node" in chart_plane.kubectl("get", "daemonset", "-n", AGENTS, "-o", "name")
    installing("rollback", "holdfast", "1", f"--namespace={NAMESPACE}")
    assert not networking()
    assert seen() == before
    chart_plane.kubectl("wait", "--for=delete", f"namespace/{AGENTS}", "--timeout=100s")


def test_an_uninstall_leaves_definitions_and_jobs_and_nothing_else(
    chart_plane: ControlPlane, installing: Helm, helm: Helm
) -> None:
    values: dict[str, Any] = {
        "nodeAgent": {"enabled": True},
        "networkPolicy": {"enabled": True},
        "monitoring": {"enabled": True, "dashboards": True},
    }
    install(installing, **values)
    chart_plane.kubectl("wait", "--for=condition=Established", "crd/trainingjobs.ml.example.com")
    chart_plane.kubectl("apply", "-n", "default", "-f", "-", input=training_job("bert"))
    told = uninstall(installing)
    assert told.count("[CustomResourceDefinition]") == 6
    assert _jobs(chart_plane) == ["trainingjob.ml.example.com/bert"]
    chart_plane.kubectl("wait", "--for=delete", f"namespace/{AGENTS}", "--timeout=100s")
    kinds = {each["kind"] for each in helm.rendered(values)} - {"Pod", "CustomResourceDefinition"}
    left = chart_plane.kubectl("get", ",".join(sorted(kinds)), "-A", "-l", "helm.sh/chart", "-o", "name")
    assert left == ""
    install(installing)  # what was kept is taken up again
    assert _jobs(chart_plane) == ["trainingjob.ml.example.com/bert"]
    upgrade(installing, crds={"keep": False})
    read_kinds(chart_plane)
    uninstall(installing)
    chart_plane.kubectl("wait", "--for=delete", "crd/trainingjobs.ml.example.com", "--timeout=100s")


def test_a_second_installation_is_refused_and_the_first_one_stays(chart_plane: ControlPlane, installing: Helm) -> None:
    install(installing)
    with pytest.raises(HelmFailed) as refused:
        installing("install", "another", str(CHART), f"--namespace={ANOTHER}")
    assert "exists and cannot be imported into the current release" in refused.value.output
    assert 'must equal "another": current value is "holdfast"' in refused.value.output
    installing("uninstall", "another", f"--namespace={ANOTHER}", "--ignore-not-found")
    assert "holdfast-operator" in chart_plane.kubectl("get", "deployment", "-n", NAMESPACE, "-o", "name")


def test_definitions_that_are_there_are_left_alone_or_taken_over(chart_plane: ControlPlane, installing: Helm) -> None:
    """As `make install` puts them on the cluster."""
    chart_plane.kubectl("apply", "--server-side", f"--filename={MANIFESTS / 'crds'}")
    with pytest.raises(HelmFailed, match="exists and cannot be imported into the current release"):
        install(installing)
    installing("uninstall", "holdfast", f"--namespace={NAMESPACE}", "--ignore-not-found")
    install(installing, crds={"install": False})
    uninstall(installing)
    found = chart_plane.kubectl("get", "crd", "-l", OURS, "-o", "name").split()
    assert len(found) == 6
    options = ("--take-ownership", "--force-conflicts", f"--namespace={NAMESPACE}")
    installing("install", "holdfast", str(CHART), *options)
    kept = chart_plane.kubectl("get", "crd/trainingjobs.ml.example.com", "-o", "jsonpath={.metadata.annotations}")
    assert "helm.sh/resource-policy" in kept


def _jobs(plane: ControlPlane) -> list[str]:
    return plane.kubectl("get", "tj", "-n", "default", "-o", "name").split()
