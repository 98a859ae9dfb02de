"""What of a template and an object becomes part of a machine: each field acts."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from holdfast.api.spotinstancevm import SpotInstanceVMSpec
from holdfast.machines.joining import JoinStep
from holdfast.machines.machine_spec import join_progress, join_target, machine_spec
from holdfast.providers.protocol import MachineSpec
from tests.machines.observations import LAUNCHED, NAME, TEMPLATE, TIMING, UID, at, seen

GCP: dict[str, Any] = {"project": "lab-project", "zone": "us-central1-a", "machineType": "n1-standard-4"}
SPEC: dict[str, Any] = {"vmImage": "images/gpu", "gcp": GCP}
METADATA = {"enable-guest-attributes": "TRUE"}


def made(spec: dict[str, Any] | None = None, **instance: Any) -> MachineSpec:
    template = structs.replace(TEMPLATE, spec=msgspec.convert({**SPEC, **(spec or {})}, SpotInstanceVMSpec))
    observed = seen(None, template=template)
    changed = structs.replace(observed.instance, spec=structs.replace(observed.instance.spec, **instance))
    return machine_spec(structs.replace(observed, instance=changed), template, "cluster", METADATA)


def gcp(**fields: Any) -> dict[str, Any]:
    return {"gcp": {**GCP, **fields}}


def test_a_plain_machine() -> None:
    assert made() == MachineSpec(
        name=NAME,
        zone="us-central1-a",
        uid=UID,
        cluster_uid="cluster",
        image="images/gpu",
        machine_type="n1-standard-4",
        metadata=METADATA,
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"vmImage": "images/other"}, {"image": "images/other"}),
        ({"gpu": {"type": "nvidia-l4", "count": 4}}, {"gpu_type": "nvidia-l4", "gpu_count": 4}),
        (gcp(machineType="g2-standard-8"), {"machine_type": "g2-standard-8"}),
        (gcp(diskSizeGB=200, diskType="pd-ssd"), {"disk_size_gb": 200, "disk_type": "pd-ssd"}),
        (gcp(network="training", subnetwork="gpus"), {"network": "training", "subnetwork": "gpus"}),
        (gcp(externalIP=False), {"external_ip": False}),
        (gcp(networkTags=["ssh", "gpu"]), {"network_tags": ("ssh", "gpu")}),
        (gcp(serviceAccount="a@b.example"), {"service_account": "a@b.example"}),
        (gcp(minCpuPlatform="Intel Cascade Lake"), {"min_cpu_platform": "Intel Cascade Lake"}),
        (gcp(preemptionNotice="2m"), {"preemption_notice_s": 120}),
        (gcp(maxRunDuration="24h"), {"max_run_duration_s": 86400}),
    ],
)
def test_what_the_template_says(spec: dict[str, Any], expected: dict[str, Any]) -> None:
    assert made(spec) == structs.replace(made(), **expected)


def test_the_object_says_where_and_whether_it_may_be_taken_back() -> None:
    assert made(zone="us-central1-b").zone == "us-central1-b"
    assert made(zone=None).zone == "us-central1-a", "the template's first"
    on_demand = made(gcp(preemptionNotice="2m"), preemptible=False)
    assert (on_demand.preemptible, on_demand.preemption_notice_s) == (False, None)


def test_a_join_is_told_all_that_it_needs() -> None:
    key = {"name": "key"}
    spec = {
        "startupScript": "true",
        "ssh": {"user": "ada", "keySecretRef": key},
        "kubeadmJoinConfig": {"tokenSecretRef": key},
    }
    template = structs.replace(TEMPLATE, spec=msgspec.convert({**SPEC, **spec}, SpotInstanceVMSpec))
    target = join_target(seen(LAUNCHED, template=template), template)
    assert (target.uid, target.namespace, target.node_name) == (UID, "ml", NAME)
    assert target.provider_id == f"gce://lab-project/us-central1-a/{NAME}"
    assert (target.startup_script, target.ssh, target.kubeadm) == (
        "true",
        template.spec.ssh,
        template.spec.kubeadm_join_config,
    )


def test_a_machine_whose_template_is_gone_is_logged_in_to_with_its_own_key() -> None:
    target = join_target(seen(LAUNCHED, template=None), None)
    assert (target.ssh, target.kubeadm, target.project) == (None, None, "lab-project")


def test_a_join_goes_on_where_its_status_says() -> None:
    status = {**LAUNCHED, "step": "Kubeadm", "step_start_time": "2026-03-01T12:01:00Z"}
    progress = join_progress(seen(status), TIMING)
    assert progress is not None
    assert (progress.step, progress.deadline) == (JoinStep.KUBEADM, at(360))
    assert join_progress(seen({**status, "step": "Deleting"}), TIMING) is None
    assert join_progress(seen(), TIMING) is None


@pytest.mark.parametrize(
    ("preemptible", "labels"),
    [
        (True, {"holdfast.dev/spot": "true", "holdfast.dev/instance": UID}),
        (False, {"holdfast.dev/instance": UID}),
    ],
)
def test_only_the_node_of_a_spot_machine_is_labelled_as_one(preemptible: bool, labels: dict[str, str]) -> None:
    observed = seen(None)
    spec = structs.replace(observed.instance.spec, preemptible=preemptible)
    observed = structs.replace(observed, instance=structs.replace(observed.instance, spec=spec))
    assert join_target(observed, TEMPLATE).node_labels == labels
