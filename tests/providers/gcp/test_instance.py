"""Bodies of inserts, machines from instances, states and labels."""

import json
import re
from typing import Any

import msgspec
import pytest

from holdfast.providers.errors import InvalidMachine
from holdfast.providers.gcp.instance import (
    STATES,
    Accelerator,
    Instance,
    MachineType,
    check_gpus,
    insert_body,
    label_value,
    labels,
    to_machine,
)
from tests.providers.compute_engine.checker import request_problems
from tests.providers.compute_engine.description import Description
from tests.providers.gcp.lab import CLUSTER, IMAGE, NAME, UID, spec

PROJECT = "my-gcp-project"
PLACE = f"projects/{PROJECT}/zones/us-central1-a"
WITHOUT_GPUS = MachineType(name="n1-standard-4")
WITH_L4 = MachineType(name="g2-standard-4", accelerators=(Accelerator(type="nvidia-l4", count=1),))

FULL = spec(
    disk_type="pd-ssd",
    disk_size_gb=200,
    network="training",
    subnetwork="gpus",
    network_tags=("gpu", "training"),
    service_account="robot@my-gcp-project.iam.gserviceaccount.com",
    min_cpu_platform="Intel Cascade Lake",
    preemption_notice_s=120,
    max_run_duration_s=86400,
    metadata={"startup-script": "#!/bin/sh", "enable-oslogin": "FALSE"},
)


def body(kind: MachineType = WITHOUT_GPUS, **changes: Any) -> dict[str, Any]:
    return insert_body(spec(**changes), PROJECT, kind)


def test_all_that_a_template_can_say_is_in_the_body() -> None:
    assert insert_body(FULL, PROJECT, WITHOUT_GPUS) == {
        "name": NAME,
        "machineType": f"{PLACE}/machineTypes/n1-standard-4",
        "minCpuPlatform": "Intel Cascade Lake",
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": IMAGE,
                    "diskSizeGb": "200",
                    "diskType": f"{PLACE}/diskTypes/pd-ssd",
                },
            }
        ],
        "networkInterfaces": [
            {
                "network": f"projects/{PROJECT}/global/networks/training",
                "subnetwork": f"projects/{PROJECT}/regions/us-central1/subnetworks/gpus",
                "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}],
            }
        ],
        "labels": {"holdfast-cluster": CLUSTER, "holdfast-instance": UID, "holdfast-job": "my-training-job"},
        "tags": {"items": ["gpu", "training"]},
        "metadata": {
            "items": [
                {"key": "enable-oslogin", "value": "FALSE"},
                {"key": "startup-script", "value": "#!/bin/sh"},
            ]
        },
        "serviceAccounts": [
            {
                "email": "robot@my-gcp-project.iam.gserviceaccount.com",
                "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
            }
        ],
        "guestAccelerators": [{"acceleratorType": f"{PLACE}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 1}],
        "scheduling": {
            "provisioningModel": "SPOT",
            "instanceTerminationAction": "DELETE",
            "onHostMaintenance": "TERMINATE",
            "automaticRestart": False,
            "maxRunDuration": {"seconds": "86400"},
            "preemptionNoticeDuration": {"seconds": "120"},
        },
    }


def test_what_is_not_asked_for_is_left_to_google() -> None:
    plain = body(gpu_type="", gpu_count=0, job="", metadata={}, external_ip=False)
    assert set(plain) == {"name", "machineType", "disks", "networkInterfaces", "labels", "scheduling"}
    assert plain["networkInterfaces"] == [{"network": f"projects/{PROJECT}/global/networks/default"}]
    assert plain["labels"] == {"holdfast-cluster": CLUSTER, "holdfast-instance": UID}


@pytest.mark.parametrize(
    ("changes", "scheduling"),
    [
        (
            {"preemptible": False},
            {"provisioningModel": "STANDARD", "automaticRestart": False, "onHostMaintenance": "TERMINATE"},
        ),
        (
            {"preemptible": False, "gpu_count": 0, "preemption_notice_s": 60},
            {"provisioningModel": "STANDARD", "automaticRestart": False},
        ),
        (
            {"preemptible": False, "gpu_count": 0, "max_run_duration_s": 3600},
            {
                "provisioningModel": "STANDARD",
                "automaticRestart": False,
                "maxRunDuration": {"seconds": "3600"},
                "instanceTerminationAction": "DELETE",
            },
        ),
        (
            {"gpu_count": 0},
            {
                "provisioningModel": "SPOT",
                "automaticRestart": False,
                "onHostMaintenance": "TERMINATE",
                "instanceTerminationAction": "DELETE",
            },
        ),
    ],
)
def test_scheduling_of_machines_on_demand_and_spot(changes: dict[str, Any], scheduling: dict[str, Any]) -> None:
    assert body(**changes)["scheduling"] == scheduling


@pytest.mark.parametrize(
    ("changes", "interface"),
    [
        ({}, {"network": f"projects/{PROJECT}/global/networks/default"}),
        ({"network": "training"}, {"network": f"projects/{PROJECT}/global/networks/training"}),
        (
            {"network": "projects/host/global/networks/shared"},
            {"network": "projects/host/global/networks/shared"},
        ),
        ({"subnetwork": "gpus"}, {"subnetwork": f"projects/{PROJECT}/regions/us-central1/subnetworks/gpus"}),
        (
            {"subnetwork": "projects/host/regions/us-central1/subnetworks/gpus"},
            {"subnetwork": "projects/host/regions/us-central1/subnetworks/gpus"},
        ),
    ],
)
def test_the_network_of_a_machine(changes: dict[str, Any], interface: dict[str, Any]) -> None:
    assert body(external_ip=False, **changes)["networkInterfaces"] == [interface]


@pytest.mark.parametrize(
    ("image", "source"),
    [
        ("projects/cos-cloud/global/images/cos-109", "projects/cos-cloud/global/images/cos-109"),
        ("projects/cos-cloud/global/images/family/cos", "projects/cos-cloud/global/images/family/cos"),
        ("gpu-nodes-7", f"projects/{PROJECT}/global/images/gpu-nodes-7"),
    ],
)
def test_an_image_by_path_or_by_name(image: str, source: str) -> None:
    assert body(image=image)["disks"][0]["initializeParams"]["sourceImage"] == source


def test_gpus_that_the_machine_type_brings_are_not_attached_again() -> None:
    with_l4 = body(WITH_L4, machine_type="g2-standard-4", gpu_type="nvidia-l4")
    assert "guestAccelerators" not in with_l4
    assert with_l4["scheduling"]["onHostMaintenance"] == "TERMINATE"


@pytest.mark.parametrize(
    ("machine_type", "gpu_type", "gpu_count", "field", "said"),
    [
        (WITHOUT_GPUS, "nvidia-tesla-t4", 1, "", ""),
        (WITHOUT_GPUS, "", 0, "", ""),
        (WITH_L4, "nvidia-l4", 1, "", ""),
        (WITH_L4, "nvidia-tesla-t4", 1, "gpu.type", "brings 1 nvidia-l4, and gpu.type is nvidia-tesla-t4"),
        (WITH_L4, "nvidia-l4", 2, "gpu.count", "brings 1 nvidia-l4, and gpu.count is 2"),
        (WITH_L4, "", 0, "gpu", "brings 1 nvidia-l4, and the template has no gpu: write type and count there"),
    ],
)
def test_gpus_of_the_type_are_compared_with_those_of_the_template(
    machine_type: MachineType, gpu_type: str, gpu_count: int, field: str, said: str
) -> None:
    wanted = spec(machine_type=machine_type.name, gpu_type=gpu_type, gpu_count=gpu_count)
    if not field:
        check_gpus(wanted, machine_type)
        return
    with pytest.raises(InvalidMachine) as caught:
        check_gpus(wanted, machine_type)
    assert (caught.value.field, caught.value.scope) == (field, "global")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "it",
    [
        spec(),
        FULL,
        spec(preemptible=False),
        spec(preemptible=False, gpu_count=0, max_run_duration_s=60),
        spec(external_ip=False, metadata={}),
        spec(job="x" * 253),
    ],
)
def test_google_would_understand_every_body(it: Any, contract: Description) -> None:
    found = contract.find("POST", f"{PLACE}/instances")
    assert found is not None
    inserted = json.loads(msgspec.json.encode(insert_body(it, PROJECT, WITHOUT_GPUS)))
    assert list(request_problems(contract, found, {"requestId": UID}, inserted)) == []


def test_every_state_of_google_is_one_of_ours(contract: Description) -> None:
    assert set(STATES) == set(contract.schemas["Instance"]["properties"]["status"]["enum"])
    assert len(STATES) == 12
    assert set(STATES.values()) == {"PROVISIONING", "STAGING", "RUNNING", "STOPPING", "TERMINATED"}


@pytest.mark.parametrize(
    ("google", "ours"),
    [
        ("PENDING", "PROVISIONING"),
        ("PROVISIONING", "PROVISIONING"),
        ("STAGING", "STAGING"),
        ("REPAIRING", "STAGING"),
        ("RUNNING", "RUNNING"),
        ("PENDING_STOP", "STOPPING"),
        ("STOPPING", "STOPPING"),
        ("SUSPENDING", "STOPPING"),
        ("DEPROVISIONING", "STOPPING"),
        ("STOPPED", "TERMINATED"),
        ("SUSPENDED", "TERMINATED"),
        ("TERMINATED", "TERMINATED"),
        ("LEVITATING", None),
        ("", None),
    ],
)
def test_states(google: str, ours: str | None) -> None:
    assert to_machine(Instance(name="m", status=google)).state == ours


def test_a_machine_of_an_instance() -> None:
    shown = {
        "name": NAME,
        "id": "4816000000000000001",
        "zone": f"https://www.googleapis.com/compute/v1/{PLACE}",
        "status": "RUNNING",
        "creationTimestamp": "2026-03-01T00:16:40.000-08:00",
        "labels": {"holdfast-cluster": CLUSTER, "holdfast-instance": UID, "other": "x"},
        "networkInterfaces": [{"networkIP": "10.128.0.2", "accessConfigs": [{"natIP": "34.72.0.2"}]}],
        "disks": [{"boot": True}],
    }
    machine = to_machine(msgspec.convert(shown, Instance))
    assert (machine.name, machine.id, machine.zone, machine.state) == (
        NAME,
        "4816000000000000001",
        "us-central1-a",
        "RUNNING",
    )
    assert (machine.internal_ip, machine.external_ip) == ("10.128.0.2", "34.72.0.2")
    assert (machine.uid, machine.cluster_uid) == (UID, CLUSTER)
    assert machine.created_at is not None
    assert machine.created_at.isoformat() == "2026-03-01T00:16:40-08:00"


@pytest.mark.parametrize(
    "shown",
    [
        {"name": "m"},
        {"name": "m", "networkInterfaces": []},
        {"name": "m", "networkInterfaces": [{}], "creationTimestamp": "yesterday"},
        {"name": "m", "networkInterfaces": [{"networkIP": "10.0.0.1", "accessConfigs": [{}]}]},
    ],
)
def test_what_an_instance_does_not_say_is_empty(shown: dict[str, Any]) -> None:
    machine = to_machine(msgspec.convert(shown, Instance))
    assert (machine.external_ip, machine.created_at, machine.uid) == ("", None, "")


@pytest.mark.parametrize("job", ["my-training-job", "a.b.c", "UPPER", "x" * 63, "x" * 64, "x" * 253, "ä", ""])
def test_any_name_of_a_job_makes_a_label_that_google_takes(job: str) -> None:
    assert re.fullmatch(r"[a-z0-9_-]{0,63}", label_value(job))


def test_long_names_stay_apart() -> None:
    assert label_value("x" * 63) == "x" * 63
    assert label_value("x" * 100 + "a") != label_value("x" * 100 + "b")
    assert "holdfast-job" not in labels(spec(job=""))
