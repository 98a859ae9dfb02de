"""What the chart refuses: names that are not there, values of another form, and values that contradict each other."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import typer
import yaml

from holdfast.cli.node import node
from holdfast.cli.operator import operator
from tests.charts.program import CHART, Helm, HelmFailed, Values, container

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
# Kubernetes' own structures, which the API server checks.
FREE = {"global", "nodeAffinity", "podAffinity", "podAntiAffinity"}


def refusal(helm: Helm, values: Values, **more: Any) -> str:
    with pytest.raises(HelmFailed) as refused:
        helm.rendered(values, **more)
    return refused.value.output


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicas": 3}, "additional properties 'replicas' not allowed"),
        ({"operator": {"replica": 3}}, "at '/operator': additional properties 'replica' not allowed"),
        ({"operator": {"replicas": "3"}}, "at '/operator/replicas': got string, want integer"),
        ({"operator": {"replicas": -1}}, "at '/operator/replicas': minimum"),
        ({"operator": {"namespaces": "ml"}}, "at '/operator/namespaces': got string, want array"),
        ({"operator": {"namespaces": ["ml", "ml"]}}, "at '/operator/namespaces': items at 0 and 1 are equal"),
        ({"operator": {"namespaces": ["ML"]}}, "at '/operator/namespaces/0': 'ML' does not match pattern"),
        ({"operator": {"logLevel": "loud"}}, "at '/operator/logLevel': value must be one of 'debug', 'info'"),
        ({"operator": {"resources": {"limit": {}}}}, "at '/operator/resources': additional properties 'limit'"),
        ({"operator": {"resources": {"limits": {"memory": "much"}}}}, "at '/operator/resources/limits/memory'"),
        ({"operator": {"antiAffinity": "hard"}}, "at '/operator/antiAffinity': value must be one of"),
        ({"operator": {"tolerations": [{"name": "gpu"}]}}, "at '/operator/tolerations/0': additional properties"),
        ({"operator": {"extraArgs": ["workers=3"]}}, "at '/operator/extraArgs/0': 'workers=3' does not match"),
        ({"image": {"digest": "sha256:1"}}, "at '/image/digest': 'sha256:1' does not match pattern"),
        ({"image": {"repository": "a/b@sha256:1"}}, "at '/image/repository'"),
        ({"image": {"repository": ""}}, "at '/image/repository'"),
        ({"imagePullSecrets": [{"name": "pull"}]}, "at '/imagePullSecrets/0': got object, want string"),
        ({"trainings": {"forbid": ["hostpath"]}}, "at '/trainings/forbid/0': value must be one of 'hostPath'"),
        ({"trainings": {"frameworkImages": {"torch": "a"}}}, "additional properties 'torch' not allowed"),
        ({"checkpointAgent": "none"}, "at '/checkpointAgent': value must be one of 'holdfast', 'external'"),
        ({"spot": {"enabled": "yes"}}, "at '/spot/enabled': got string, want boolean"),
        ({"nodeAgent": {"namespace": "agents"}}, "at '/nodeAgent/namespace': got string, want object"),
        ({"networkPolicy": {"nodeCIDRs": ["10.0.0.1"]}}, "at '/networkPolicy/nodeCIDRs/0'"),
        ({"networkPolicy": {"registries": {"ports": []}}}, "at '/networkPolicy/registries/ports': minItems"),
        ({"networkPolicy": {"metricsFrom": [{"namespace": "monitoring"}]}}, "additional properties 'namespace'"),
        ({"monitoring": True}, "at '/monitoring': got boolean, want object"),
    ],
    ids=str,
)
def test_a_value_that_is_none_is_refused_with_its_place(helm: Helm, values: Values, said: str) -> None:
    assert said in refusal(helm, values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"image": {"tag": "1", "digest": f"sha256:{'0' * 64}"}},
            "image.tag and image.digest are both set: a digest says which image it is; leave the tag empty",
        ),
        (
            {"nodeAgent": {"enabled": True, "namespace": {"name": "holdfast-system"}}},
            "the operator's own namespace, which keeps to the restricted profile: agents need one of their own",
        ),
        (
            {"spot": {"enabled": False, "ownCloudIdentity": ["ml"]}},
            "spot.ownCloudIdentity lists namespaces, but spot.enabled is false: no machine is made",
        ),
        (
            {"spot": {"ownCloudIdentity": ["ml", "lab"]}, "operator": {"namespaces": ["ml"]}},
            "lists lab, which is not among operator.namespaces: the operator does not look after it",
        ),
        (
            {"userRoles": {"create": False}},
            "userRoles.aggregate is true, but userRoles.create is false: there is no role to aggregate",
        ),
        (
            {"operator": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}}},
            "are both set: set operator.antiAffinity to none, or leave the other out",
        ),
        (
            {"operator": {"extraArgs": ["--workers=3", "--namespace=ml"]}},
            "operator.extraArgs: --namespace is set by operator.namespaces",
        ),
        (
            {"operator": {"extraArgs": ["--no-leader-elect"]}},
            "operator.extraArgs: --leader-elect is set by the chart",
        ),
        (
            {"nodeAgent": {"extraArgs": ["--no-preemption-notices"]}},
            "nodeAgent.extraArgs: --preemption-notices is set by nodeAgent.preemptionNotices",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_with_a_sentence(helm: Helm, values: Values, said: str) -> None:
    assert said in refusal(helm, values)


def test_it_is_not_installed_among_kubernetes_own(helm: Helm) -> None:
    said = refusal(helm, {}, namespace="kube-system")
    assert "holdfast can't be installed in kube-system: give it a namespace of its own" in said


def test_a_kubernetes_that_is_too_old_is_refused(helm: Helm) -> None:
    with pytest.raises(HelmFailed, match=r"chart requires kubeVersion: >=1\.33\.0-0"):
        helm.rendered({}, "--kube-version=1.32.9")
    assert helm.rendered({}, "--kube-version=1.33.0-gke.1")


def structures(schema: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every schema of an object, with the last name on the way to it."""
    if schema.get("type") == "object":
        yield place, schema
    for name, part in {**schema.get("properties", {}), **schema.get("$defs", {})}.items():
        yield from structures(part, name)
    for key in ("items", "additionalProperties"):
        if isinstance(part := schema.get(key), dict):
            yield from structures(part, place)


def test_no_structure_takes_a_name_that_it_does_not_list() -> None:
    open_ones = {place for place, schema in structures(SCHEMA) if "additionalProperties" not in schema}
    assert open_ones == FREE
    assert True not in [schema.get("additionalProperties") for _, schema in structures(SCHEMA)]


def paths(values: Mapping[str, Any], start: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{start}{name}"
        if isinstance(value, dict):
            yield from paths(value, f"{start}{name}.")


def test_every_value_of_the_schema_has_its_default_and_its_place_in_the_file() -> None:
    def listed(schema: Mapping[str, Any], start: str = "") -> Iterator[str]:
        for name, part in schema.get("properties", {}).items():
            yield f"{start}{name}"
            yield from listed(part, f"{start}{name}.")

    shapes = ("affinity.", "frameworkImages.", "global")
    expected = {path for path in listed(SCHEMA) if not any(shape in path for shape in shapes)}
    inner = ("resources.", "nodeSelector.", "apiServer.", "registries.", "machines.")
    assert {path for path in paths(VALUES) if not any(shape in path for shape in inner)} == expected


def options(command: Any) -> set[str]:
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return {
        name.removeprefix("--")
        for parameter in typer.main.get_command(app).params
        for name in parameter.opts
        if name.startswith("--")
    }


@pytest.mark.parametrize(
    ("command", "definition", "free"),
    [
        (
            operator,
            "operatorOptions",
            {
                "bind-timeout",
                "cluster-domain",
                "final-save",
                "lease-after",
                "machine-join-timeout",
                "machine-launch-timeout",
                "machine-ready-timeout",
                "patience",
                "reservations-per-namespace",
                "resync",
                "retry-backoff",
                "retry-backoff-cap",
                "silent-after",
                "stuck-after",
                "survivors-grace",
                "uploading-grace",
                "workers",
            },
        ),
        (node, "agentOptions", {"kubelet-port", "metadata-server"}),
    ],
)
def test_an_option_is_set_by_a_value_or_free_to_be_added(command: Any, definition: str, free: set[str]) -> None:
    """A new option needs a thought: a value of its own, or extraArgs."""
    text = (CHART / "templates" / "_checks.tpl").read_text()
    section = text.split(f'define "holdfast.{definition}" -}}}}\n', 1)[1].split("{{-", 1)[0]
    set_by_chart = dict(line.split(": ") for line in section.splitlines())
    assert options(command) == set_by_chart.keys() | free
    assert not set_by_chart.keys() & free
    known = {*paths(VALUES), "the chart"}
    assert {value for value in set_by_chart.values() if value not in known} == set()


def test_an_added_option_comes_last(helm: Helm) -> None:
    values = {
        "operator": {"extraArgs": ["--workers=20", "--patience=30"]},
        "nodeAgent": {"enabled": True, "extraArgs": ["--kubelet-port=10255"]},
    }
    rendered = helm.rendered(values)
    assert container(rendered, "Deployment")["args"][-2:] == ["--workers=20", "--patience=30"]
    assert container(rendered, "DaemonSet")["args"] == ["--bind-address=$(NODE_IP)", "--kubelet-port=10255"]
