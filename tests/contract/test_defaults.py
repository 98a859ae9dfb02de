"""What the cluster fills in: an object is never read back as bare as it was written."""

import pytest

from holdfast.cluster.protocol import Cluster

from .kinds import GADGETS, JOBS, PODS, SERVICES, gadget, key_of
from .pods import indexed, job, pod


@pytest.mark.every_engine
async def test_a_job_gets_the_defaults_that_its_controller_goes_by(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(JOBS, job("one", suspend=True), namespace=namespace)
    expected = {
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "completions": 1,
        "parallelism": 1,
        "suspend": True,
        "manualSelector": False,
        "podReplacementPolicy": "TerminatingOrFailed",
    }
    assert {field: made.spec.get(field) for field in expected} == expected
    assert made.spec["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": made.metadata.uid}}
    assert made.spec["template"]["metadata"]["labels"] == {
        "batch.kubernetes.io/controller-uid": made.metadata.uid,
        "batch.kubernetes.io/job-name": "one",
        "controller-uid": made.metadata.uid,
        "job-name": "one",
    }


async def test_a_job_without_completions_ends_with_the_first_success(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(JOBS, job("one", parallelism=2, suspend=True), namespace=namespace)
    assert "completions" not in made.spec


async def test_a_job_that_is_not_suspended_says_so(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(JOBS, job("one"), namespace=namespace)
    assert made.spec["suspend"] is False


async def test_a_failure_policy_makes_the_job_wait_for_the_failed_pod(cluster: Cluster, namespace: str) -> None:
    policy = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}]}
    made = await cluster.create(
        JOBS, indexed("one", "none", 1, suspend=True, podFailurePolicy=policy), namespace=namespace
    )
    assert made.spec["podReplacementPolicy"] == "Failed"


@pytest.mark.every_engine
async def test_a_pod_template_gets_a_pods_defaults(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(JOBS, job("one", suspend=True), namespace=namespace)
    template = made.spec["template"]["spec"]
    assert template["dnsPolicy"] == "ClusterFirst"
    assert template["schedulerName"] == "default-scheduler"
    assert template["securityContext"] == {}
    container = template["containers"][0]
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["terminationMessagePath"] == "/dev/termination-log"
    assert container["terminationMessagePolicy"] == "File"


async def test_an_image_without_a_tag_is_pulled_always(cluster: Cluster, namespace: str) -> None:
    body = pod("one", "none")
    body["spec"]["containers"][0]["image"] = "registry.invalid/main"
    made = await cluster.create(PODS, body, namespace=namespace)
    assert made.spec["containers"][0]["imagePullPolicy"] == "Always"


async def test_a_pod_without_a_grace_period_gets_thirty_seconds(cluster: Cluster, namespace: str) -> None:
    body = pod("one", "none")
    del body["spec"]["terminationGracePeriodSeconds"], body["spec"]["restartPolicy"]
    made = await cluster.create(PODS, body, namespace=namespace)
    assert made.spec["terminationGracePeriodSeconds"] == 30
    assert made.spec["restartPolicy"] == "Always"
    assert made.status["phase"] == "Pending"


async def test_a_limit_without_a_request_is_the_request(cluster: Cluster, namespace: str) -> None:
    body = pod("one", "none")
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "2", "cpu": "1"}}
    made = await cluster.create(PODS, body, namespace=namespace)
    assert made.spec["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "2", "cpu": "1"}


async def test_a_service_gets_an_address_and_the_defaults_of_its_ports(cluster: Cluster, namespace: str) -> None:
    body = {"metadata": {"name": "one"}, "spec": {"selector": {"a": "b"}, "ports": [{"port": 29500}]}}
    made = await cluster.create(SERVICES, body, namespace=namespace)
    assert made.spec["type"] == "ClusterIP"
    assert made.spec["sessionAffinity"] == "None"
    assert made.spec["ports"] == [{"port": 29500, "protocol": "TCP", "targetPort": 29500}]
    assert made.spec["clusterIP"].count(".") == 3
    assert made.spec["clusterIPs"] == [made.spec["clusterIP"]]


async def test_a_headless_service_keeps_having_no_address(cluster: Cluster, namespace: str) -> None:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"a": "b"}}
    made = await cluster.create(SERVICES, {"metadata": {"name": "one"}, "spec": spec}, namespace=namespace)
    assert made.spec["clusterIP"] == "None"
    assert made.spec["publishNotReadyAddresses"] is True


async def test_another_name_for_a_name_has_no_address(cluster: Cluster, namespace: str) -> None:
    port = {"name": "master", "port": 29500, "targetPort": 29500, "protocol": "TCP"}
    spec = {"type": "ExternalName", "externalName": "first.team.ml.svc.cluster.local", "ports": [port]}
    made = await cluster.create(SERVICES, {"metadata": {"name": "one"}, "spec": spec}, namespace=namespace)
    assert made.spec == {**spec, "sessionAffinity": "None"}


async def test_a_custom_resource_gets_the_defaults_of_its_schema(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one", spec={"limit": 5}), namespace=namespace)
    assert made.spec == {"size": 1, "limit": 5, "color": "red"}


async def test_a_default_comes_back_when_its_field_is_taken_away(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one", spec={"color": "green"}), namespace=namespace)
    patched = await cluster.patch(GADGETS, key_of(made), {"spec": {"color": None}})
    assert patched.spec["color"] == "red"
