"""What each value changes in the objects that the chart makes."""

import re
from typing import Any

import pytest

from tests.charts.program import CHECKOUT, Helm, by_name, container, find, objects
from tests.docs.markdown import tables

REPOSITORY = "registry.example.com/team/holdfast"
DIGEST = f"sha256:{'a' * 64}"


def operator_args(helm: Helm, values: dict[str, Any]) -> list[str]:
    args: list[str] = container(helm.rendered(values), "Deployment")["args"]
    return args


def test_helm_finds_no_fault_in_it(helm: Helm) -> None:
    said = helm("lint", "--strict", str(CHECKOUT / "charts" / "holdfast"))
    assert "1 chart(s) linted, 0 chart(s) failed" in said


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({"repository": REPOSITORY}, f"{REPOSITORY}:0.1.0"),
        ({"repository": REPOSITORY, "tag": "v7"}, f"{REPOSITORY}:v7"),
        ({"repository": REPOSITORY, "digest": DIGEST}, f"{REPOSITORY}@{DIGEST}"),
    ],
)
def test_one_image_is_that_of_operator_agents_sidecars_and_the_test(
    helm: Helm, image: dict[str, str], expected: str
) -> None:
    rendered = helm.rendered({"image": image, "nodeAgent": {"enabled": True}})
    operator = container(rendered, "Deployment")
    (test,) = find(rendered, "Pod")["spec"]["containers"]
    assert {operator["image"], container(rendered, "DaemonSet")["image"], test["image"]} == {expected}
    assert operator["args"][:2] == [f"--default-image={expected}", f"--holdfast-image={expected}"]


def test_every_pod_is_pulled_with_the_secrets_that_are_named_and_as_often_as_told(helm: Helm) -> None:
    values = {"imagePullSecrets": ["team"], "image": {"pullPolicy": "Always"}, "nodeAgent": {"enabled": True}}
    rendered = helm.rendered(values)
    pods = [find(rendered, kind)["spec"]["template"]["spec"] for kind in ("Deployment", "DaemonSet")]
    for pod in (*pods, find(rendered, "Pod")["spec"]):
        assert pod["imagePullSecrets"] == [{"name": "team"}]
        assert [each["imagePullPolicy"] for each in pod["containers"]] == ["Always"]


@pytest.mark.parametrize(
    ("values", "added"),
    [
        ({"operator": {"namespaces": ["ml", "lab"]}}, ["--namespace=ml", "--namespace=lab"]),
        ({"trainings": {"frameworkImages": {"jax": "repo/jax:1"}}}, ["--framework-image=jax=repo/jax:1"]),
        ({"trainings": {"tensorboardImage": "repo/tb:1"}}, ["--tensorboard-image=repo/tb:1"]),
        ({"trainings": {"rdmaResource": "rdma/hca"}}, ["--rdma-resource=rdma/hca"]),
        ({"trainings": {"claimSize": "1Ti"}}, ["--claim-size=1Ti"]),
        ({"trainings": {"serviceMonitors": True}}, ["--service-monitors"]),
        ({"trainings": {"gangAdmission": False}}, ["--no-gang-admission"]),
        ({"trainings": {"perJobMetrics": False}}, ["--no-per-job-metrics"]),
        ({"trainings": {"forbid": ["hostPath", "root"]}}, ["--forbid=hostPath", "--forbid=root"]),
        ({"plainHttpRegistries": ["localhost:5000"]}, ["--plain-http-registry=localhost:5000"]),
        ({"checkpointAgent": "external"}, ["--checkpoint-agent=external"]),
        ({"spot": {"ownCloudIdentity": ["ml"]}}, ["--own-cloud-identity=ml"]),
    ],
    ids=str,
)
def test_a_value_is_an_option_of_the_operator(helm: Helm, values: dict[str, Any], added: list[str]) -> None:
    usual = operator_args(helm, {})
    assert operator_args(helm, values) == [*usual, *added]


@pytest.mark.parametrize(
    ("values", "added"),
    [
        ({"plainHttpRegistries": ["localhost:5000"]}, ["--plain-http-registry=localhost:5000"]),
        ({"nodeAgent": {"preemptionNotices": False}}, ["--no-preemption-notices"]),
    ],
    ids=str,
)
def test_a_value_is_an_option_of_the_agents(helm: Helm, values: dict[str, Any], added: list[str]) -> None:
    asked = {**values, "nodeAgent": {"enabled": True, **values.get("nodeAgent", {})}}
    usual = container(helm.rendered({"nodeAgent": {"enabled": True}}), "DaemonSet")["args"]
    assert container(helm.rendered(asked), "DaemonSet")["args"] == [*usual, *added]


def test_images_of_jobs_can_differ_from_the_operators(helm: Helm) -> None:
    args = operator_args(helm, {"trainings": {"image": "repo/train:1", "sidecarImage": "repo/sidecar:1"}})
    assert args[:2] == ["--default-image=repo/train:1", "--holdfast-image=repo/sidecar:1"]


def test_pods_are_placed_and_bounded_as_told(helm: Helm) -> None:
    placed: dict[str, Any] = {
        "resources": {"requests": {"cpu": 1}, "limits": {"memory": "2Gi"}},
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "priorityClassName": "platform",
        "podAnnotations": {"team": "ml"},
        "logLevel": "debug",
    }
    rendered = helm.rendered({"operator": {**placed, "replicas": 3}, "nodeAgent": {**placed, "enabled": True}})
    assert find(rendered, "Deployment")["spec"]["replicas"] == 3
    for kind in ("Deployment", "DaemonSet"):
        template = find(rendered, kind)["spec"]["template"]
        spec = template["spec"]
        assert template["metadata"]["annotations"]["team"] == "ml"
        assert "prometheus.io/port" in template["metadata"]["annotations"]
        assert placed["nodeSelector"].items() <= spec["nodeSelector"].items()
        assert (spec["tolerations"], spec["priorityClassName"]) == (placed["tolerations"], "platform")
        assert spec["containers"][0]["resources"]["limits"] == {"memory": "2Gi"}
        assert spec["containers"][0]["env"][0] == {"name": "LOG_LEVEL", "value": "debug"}


def test_replicas_can_be_kept_apart_or_left_alone(helm: Helm) -> None:
    def affinity(values: dict[str, Any]) -> Any:
        return find(helm.rendered({"operator": values}), "Deployment")["spec"]["template"]["spec"].get("affinity")

    assert "requiredDuringSchedulingIgnoredDuringExecution" in affinity({"antiAffinity": "required"})["podAntiAffinity"]
    assert affinity({"antiAffinity": "none"}) is None
    wanted: dict[str, Any] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert affinity({"affinity": wanted}).keys() == {"nodeAffinity", "podAntiAffinity"}
    own: dict[str, Any] = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert affinity({"antiAffinity": "none", "affinity": own}) == own


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"operator": {"podDisruptionBudget": False}}, "PodDisruptionBudget"),
        ({"crds": {"install": False}}, "CustomResourceDefinition"),
        ({"nodeAgent": {"enabled": True, "namespace": {"create": False}}}, "Namespace"),
    ],
)
def test_what_is_switched_off_is_not_made(helm: Helm, values: dict[str, Any], kind: str) -> None:
    assert kind in {each["kind"] for each in helm.rendered({"nodeAgent": {"enabled": True}})}
    assert kind not in {each["kind"] for each in helm.rendered(values)}


def test_definitions_go_with_the_chart_only_where_it_was_told_so(helm: Helm) -> None:
    rendered = helm.rendered({"crds": {"keep": False}})
    found = [each for each in rendered if each["kind"] == "CustomResourceDefinition"]
    assert len(found) == 6
    carried = (CHECKOUT / "manifests" / "crds").iterdir()
    assert by_name(found) == by_name(one for path in carried for one in objects(path.read_text()))


def test_roles_for_people_are_part_of_no_other_role_if_told(helm: Helm) -> None:
    roles = [each for each in helm.rendered({"userRoles": {"aggregate": False}}) if each["kind"] == "ClusterRole"]
    assert {"holdfast-view", "holdfast-edit", "holdfast-admin"} <= {each["metadata"]["name"] for each in roles}
    assert not [label for each in roles for label in each["metadata"]["labels"] if "aggregate" in label]
    off = helm.rendered({"userRoles": {"create": False, "aggregate": False}})
    assert "holdfast-view" not in {each["metadata"]["name"] for each in off}


def test_policies_open_what_the_security_page_lists(helm: Helm) -> None:
    listed: dict[str, set[str]] = {"to": set(), "from": set()}
    text = (CHECKOUT / "docs" / "security.md").read_text().split("| direction | with | port |", 1)[1]
    for direction, ports in re.findall(r"^\| (to|from) \|[^|]*\| ([^|]*)\|$", text.split("\n\n", 1)[0], re.MULTILINE):
        listed[direction] |= set(re.findall(r"\b\d+\b", ports))
    values = {"networkPolicy": {"enabled": True}, "spot": {"ownCloudIdentity": ["ml"]}}
    spec = find(helm.rendered(values), "NetworkPolicy")["spec"]
    for direction, rules in (("to", spec["egress"]), ("from", spec["ingress"])):
        assert {str(port["port"]) for rule in rules for port in rule["ports"]} == listed[direction]
    deployment = find(helm.rendered(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert spec["podSelector"]["matchLabels"] == deployment
    assert "Options" not in tables(text)


def test_policies_are_as_narrow_as_the_addresses_that_are_told(helm: Helm) -> None:
    nodes, server, registry, machines = "10.1.0.0/16", "10.0.0.1/32", "10.2.0.9/32", "10.3.0.0/16"
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    values = {
        "operator": {"namespaces": ["ml"]},
        "networkPolicy": {
            "enabled": True,
            "metricsFrom": [monitoring],
            "nodeCIDRs": [nodes],
            "apiServer": {"cidrs": [server], "ports": [6443]},
            "registries": {"cidrs": [registry], "ports": [5000]},
            "machines": {"cidrs": [machines], "ports": [2222]},
        },
    }
    spec = find(helm.rendered(values), "NetworkPolicy")["spec"]
    tests = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "holdfast-test"}}}
    jobs = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ml"}}}

    def rule(direction: str, peers: list[Any], port: int) -> dict[str, Any]:
        return {direction: peers, "ports": [{"protocol": "TCP", "port": port}]}

    def block(cidr: str) -> dict[str, Any]:
        return {"ipBlock": {"cidr": cidr}}

    assert spec["ingress"] == [
        rule("from", [monitoring, tests], 8080),
        rule("from", [block(nodes)], 8081),
        rule("from", [block(nodes)], 8082),
        rule("from", [jobs], 8082),
    ]
    dns, *others = spec["egress"]
    assert dns == {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
    assert others == [
        rule("to", [block(server)], 6443),
        rule("to", [block(registry)], 5000),
        rule("to", [block(machines)], 2222),
        {"to": [block(nodes)], "ports": [{"protocol": "TCP", "port": port} for port in (10250, 8470)]},
        rule("to", [jobs], 8470),
    ]


def test_nobody_reaches_a_metadata_server_by_the_way_to_registries_and_machines(helm: Helm) -> None:
    spec = find(helm.rendered({"networkPolicy": {"enabled": True}}), "NetworkPolicy")["spec"]
    ports = {port["port"]: rule for rule in spec["egress"] for port in rule["ports"]}
    assert 80 not in ports
    assert spec["ingress"][0]["from"][0] == {"namespaceSelector": {}}
    assert "169.254.169.254/32" in ports[22]["to"][0]["ipBlock"]["except"]
    without = find(helm.rendered({"networkPolicy": {"enabled": True}, "spot": {"enabled": False}}), "NetworkPolicy")
    assert 22 not in {port["port"] for rule in without["spec"]["egress"] for port in rule["ports"]}
