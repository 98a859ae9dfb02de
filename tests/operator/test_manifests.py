"""The operator's own manifests: taken by the API server, and no more rights than it needs."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from holdfast.cli.operator import DEFAULT_IMAGE
from tests.control_plane.server import ControlPlane
from tests.operator.deployed import deployed as deployed_folders
from tests.operator.deployed import may as account_may

CHECKOUT = Path(__file__).parents[2]
MANIFESTS = CHECKOUT / "manifests" / "operator"
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "*")
NODE_LEASES = ("-n", "kube-node-lease")
ACCOUNT = "system:serviceaccount:holdfast-system:holdfast-operator"


@pytest.fixture(scope="module")
def deployed(plane: ControlPlane) -> Iterator[ControlPlane]:
    with deployed_folders(plane, "operator") as found:
        yield found


def may(plane: ControlPlane, verb: str, resource: str, *scope: str) -> bool:
    return account_may(plane, ACCOUNT, verb, resource, *(scope or ("-A",)))


def test_the_image_that_make_builds_is_the_one_that_is_deployed_and_asked_for() -> None:
    said = subprocess.run(["make", "-n", "docker-build"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert f" -t {DEFAULT_IMAGE} " in said.stdout
    (container,) = yaml.safe_load((MANIFESTS / "deployment.yaml").read_text())["spec"]["template"]["spec"]["containers"]
    assert container["image"] == DEFAULT_IMAGE
    assert container["args"][:2] == [f"--default-image={DEFAULT_IMAGE}", f"--holdfast-image={DEFAULT_IMAGE}"]


def test_its_service_and_service_monitor_find_its_metrics() -> None:
    deployment, service = (
        yaml.safe_load((MANIFESTS / name).read_text()) for name in ("deployment.yaml", "service.yaml")
    )
    monitor = yaml.safe_load((MANIFESTS.parent / "monitoring" / "servicemonitor.yaml").read_text())
    template = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] in {each["name"] for each in template["spec"]["containers"][0]["ports"]}
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == [port["name"]]
    namespaces = {each["metadata"]["namespace"] for each in (deployment, service, monitor)}
    assert namespaces == {"holdfast-system"}


def test_its_pods_keep_to_the_restricted_profile(deployed: ControlPlane) -> None:
    deployment = yaml.safe_load((MANIFESTS / "deployment.yaml").read_text())
    template = deployment["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "trial", "namespace": "holdfast-system"},
        "spec": {**template["spec"], "serviceAccountName": "default"},
    }
    # The namespace enforces the profile: a pod that broke it would be refused here.
    told = deployed.kubectl("create", "--dry-run=server", "-f", "-", input=yaml.safe_dump(pod))
    assert "created (server dry run)" in told


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        *((verb, "secrets") for verb in VERBS),
        ("create", "pods"),
        ("update", "trainingjobs.ml.example.com"),
        ("create", "trainingjobs.ml.example.com"),
        ("update", "gpuworkloads.gpu.warp.dev"),
        ("create", "gpuworkloads.gpu.warp.dev"),
        ("delete", "persistentvolumeclaims"),
        ("patch", "persistentvolumeclaims"),
        ("create", "nodes"),
        ("update", "nodes"),
        ("deletecollection", "nodes"),
        ("list", "namespaces"),
        ("create", "spotinstancejobs.training.training.dcnlab.com"),
        ("update", "spotinstancejobs.training.training.dcnlab.com"),
        ("create", "spotinstancevms.training.training.dcnlab.com"),
        ("delete", "spotinstancevms.training.training.dcnlab.com"),
        ("deletecollection", "provisionedinstances.training.training.dcnlab.com"),
        *((verb, "leases.coordination.k8s.io") for verb in VERBS),
        ("get", "tokenreviews.authentication.k8s.io"),
        ("create", "subjectaccessreviews.authorization.k8s.io"),
        ("create", "clusterrolebindings.rbac.authorization.k8s.io"),
    ],
)
def test_what_it_does_not_need_it_may_not(deployed: ControlPlane, verb: str, resource: str) -> None:
    assert not may(deployed, verb, resource)


def test_what_it_needs_it_may(deployed: ControlPlane) -> None:
    assert may(deployed, "create", "jobs.batch")
    assert may(deployed, "patch", "trainingjobs.ml.example.com", "--subresource=status", "-A")
    assert may(deployed, "patch", "gpuworkloads.gpu.warp.dev", "--subresource=status", "-A")
    assert may(deployed, "get", "leases/holdfast-operator", "-n", "holdfast-system")
    assert may(deployed, "create", "checkpointbackups.migration.dcnlab.com")
    assert may(deployed, "create", "provisionedinstances.training.training.dcnlab.com")
    for kind in ("spotinstancejobs", "spotinstancevms", "provisionedinstances"):
        assert may(deployed, "patch", f"{kind}.training.training.dcnlab.com", "--subresource=status", "-A")


def test_it_may_ask_whose_a_token_is_and_make_none(deployed: ControlPlane) -> None:
    assert may(deployed, "create", "tokenreviews.authentication.k8s.io")
    assert not may(deployed, "create", "serviceaccounts", "--subresource=token", "-A")


def test_nodes_leases_it_may_read_and_nothing_else(deployed: ControlPlane) -> None:
    allowed = [verb for verb in VERBS if may(deployed, verb, "leases.coordination.k8s.io", *NODE_LEASES)]
    assert allowed == ["get", "list", "watch"]
    assert not may(deployed, "get", "secrets", *NODE_LEASES)
    assert not may(deployed, "get", "leases.coordination.k8s.io", "-n", "kube-system")


@pytest.mark.parametrize("namespace", ["holdfast-system", "kube-node-lease", "kube-system", "default"])
def test_no_namespace_shows_it_its_secrets(deployed: ControlPlane, namespace: str) -> None:
    for verb in ("get", "list", "watch"):
        assert not may(deployed, verb, "secrets", "-n", namespace)


def test_pods_get_the_address_for_reports() -> None:
    deployment = yaml.safe_load((MANIFESTS / "deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    assert address in container["env"]
    assert {"name": "reports", "containerPort": 8082} in container["ports"]
