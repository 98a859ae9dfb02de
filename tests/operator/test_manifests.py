"""The operator's own manifests: taken by the API server, and no more rights than it needs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.control_plane.kubectl import KubectlFailed
from tests.control_plane.server import ControlPlane

MANIFESTS = Path(__file__).parents[2] / "manifests" / "operator"
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "*")
NODE_LEASES = ("-n", "kube-node-lease")
ACCOUNT = "--as=system:serviceaccount:holdfast-system:holdfast-operator"


@pytest.fixture(scope="module")
def deployed(plane: ControlPlane) -> Iterator[ControlPlane]:
    plane.kubectl("apply", "--server-side", "-k", str(MANIFESTS))
    yield plane
    plane.kubectl("delete", "--wait=false", "-k", str(MANIFESTS))


def may(plane: ControlPlane, verb: str, resource: str, *scope: str) -> bool:
    try:
        return plane.kubectl("auth", "can-i", verb, resource, ACCOUNT, *(scope or ("-A",))).strip() == "yes"
    except KubectlFailed as refused:
        if not refused.output.strip().endswith("no"):
            raise  # any other failure is no answer
        return False


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
        ("delete", "nodes"),
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


def test_it_may_ask_whose_a_token_is_and_make_none(deployed: ControlPlane) -> None:
    assert may(deployed, "create", "tokenreviews.authentication.k8s.io")
    assert not may(deployed, "create", "serviceaccounts", "--subresource=token", "-A")


def test_of_nodes_leases_it_may_read_one_at_a_time_and_nothing_else(deployed: ControlPlane) -> None:
    allowed = [verb for verb in VERBS if may(deployed, verb, "leases.coordination.k8s.io", *NODE_LEASES)]
    assert allowed == ["get"]
    assert not may(deployed, "get", "secrets", *NODE_LEASES)
    assert not may(deployed, "get", "leases.coordination.k8s.io", "-n", "kube-system")


@pytest.mark.parametrize("namespace", ["holdfast-system", "kube-node-lease", "kube-system", "default"])
def test_no_namespace_shows_it_its_secrets(deployed: ControlPlane, namespace: str) -> None:
    for verb in ("get", "list", "watch"):
        assert not may(deployed, verb, "secrets", "-n", namespace)


def test_pods_are_told_where_to_report() -> None:
    deployment = yaml.safe_load((MANIFESTS / "deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    assert address in container["env"]
    assert {"name": "reports", "containerPort": 8082} in container["ports"]
