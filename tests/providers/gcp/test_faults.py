"""What a refusal of Google means: each answer and each failed operation has its class, and a sentence that helps."""

import json
from typing import Any

import msgspec
import pytest

from holdfast.providers.errors import (
    CloudUnauthorized,
    InvalidMachine,
    MachineEnded,
    MachineNotFound,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Stockout,
)
from holdfast.providers.gcp.faults import MachineNameTaken, OperationError, operation_error, response_error
from tests.providers.compute_engine.refusals import (
    OperationFailure,
    Refused,
    forbidden,
    invalid,
    no_actor,
    no_addresses,
    not_found,
    over_quota,
    preempted_while_starting,
    stockout,
    taken,
    too_fast,
    unauthenticated,
    unavailable,
)

PLACE = "projects/p/zones/us-central1-a"
TRIED = "make machine m in us-central1-a"


def answered(refused: Refused, *, retry_after_s: float | None = None) -> ProviderError:
    response = refused.response
    return response_error(TRIED, response.status, response.body, retry_after_s=retry_after_s)


def failed(*failures: OperationFailure) -> ProviderError:
    errors = msgspec.convert([failure.error for failure in failures], tuple[OperationError, ...])
    return operation_error(TRIED, errors)


def field_of(error: ProviderError) -> tuple[str, str]:
    assert isinstance(error, InvalidMachine)
    return error.field, error.scope


@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (unauthenticated(), CloudUnauthorized),
        (forbidden("compute.instances.create", f"{PLACE}/instances/m"), CloudUnauthorized),
        (no_actor("robot@p.iam.gserviceaccount.com", "me@p.iam.gserviceaccount.com"), CloudUnauthorized),
        (
            Refused(403, "accessNotConfigured", "Compute Engine API has not been used in project 1 before"),
            CloudUnauthorized,
        ),
        (Refused(403, "insufficientPermissions", "Request had insufficient authentication scopes."), CloudUnauthorized),
        (too_fast(), RateLimited),
        (Refused(429, "rateLimitExceeded", "Too many requests"), RateLimited),
        (Refused(403, "userRateLimitExceeded", "User Rate Limit Exceeded"), RateLimited),
        (Refused(403, "quotaExceeded", "Quota 'CPUS' exceeded.  Limit: 24.0 in region us-central1."), QuotaExceeded),
        (Refused(503, "ZONE_RESOURCE_POOL_EXHAUSTED", "The zone does not have enough resources"), Stockout),
        (not_found(f"{PLACE}/instances/m"), MachineNotFound),
        (not_found(f"{PLACE}/operations/o"), MachineNotFound),
        (taken(f"{PLACE}/instances/m"), MachineNameTaken),
        (
            Refused(412, "conditionNotMet", "Constraint constraints/compute.vmExternalIpAccess violated"),
            InvalidMachine,
        ),
        (Refused(400, "invalid", "Something is wrong."), InvalidMachine),
        (unavailable(), ProviderError),
        (Refused(500, "internalError", "Internal error"), ProviderError),
        (Refused(418, "teapot", ""), ProviderError),
    ],
)
def test_the_class_of_an_answer(refused: Refused, kind: type[ProviderError]) -> None:
    error = answered(refused)
    assert type(error) is kind
    assert str(error).startswith(f"can't {TRIED}: ")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error": "no"}', b"\xff"])
@pytest.mark.parametrize(("status", "kind"), [(401, CloudUnauthorized), (404, MachineNotFound), (502, ProviderError)])
def test_an_answer_that_is_no_json_is_judged_by_its_status(body: bytes, status: int, kind: type[ProviderError]) -> None:
    error = response_error(TRIED, status, body)
    assert type(error) is kind
    assert f"the answer is {status}" in str(error) or status == 404


def test_a_rate_limit_carries_googles_own_word() -> None:
    error = answered(too_fast(30), retry_after_s=30.0)
    assert isinstance(error, RateLimited)
    assert error.retry_after_s == 30.0
    bare = answered(too_fast())
    assert isinstance(bare, RateLimited)
    assert bare.retry_after_s is None


def test_a_missing_permission_is_named() -> None:
    error = answered(forbidden("compute.disks.create", f"{PLACE}/disks/m"))
    assert str(error) == (
        f"can't {TRIED}: the credential lacks the permission compute.disks.create for {PLACE}/disks/m: grant its "
        "service account a role with it"
    )
    actor = answered(no_actor("robot@p.iam.gserviceaccount.com", "me@p.iam.gserviceaccount.com"))
    assert "lacks the permission iam.serviceAccounts.actAs for robot@p.iam.gserviceaccount.com" in str(actor)


@pytest.mark.parametrize(
    ("failure", "quota", "scope", "said"),
    [
        (
            over_quota("PREEMPTIBLE_NVIDIA_T4_GPUS", "us-central1", 0),
            "PREEMPTIBLE_NVIDIA_T4_GPUS",
            "region",
            "the project's quota PREEMPTIBLE_NVIDIA_T4_GPUS in us-central1 is used up (limit 0): ask Google to raise",
        ),
        (
            over_quota("GPUS_ALL_REGIONS", "", 4),
            "GPUS_ALL_REGIONS",
            "global",
            "the project's quota GPUS_ALL_REGIONS is used up (limit 4)",
        ),
        (
            OperationFailure("QUOTA_EXCEEDED", "Quota 'CPUS' exceeded.  Limit: 24.0 in region europe-west4."),
            "CPUS",
            "region",
            "quota CPUS in europe-west4 is used up (limit 24)",
        ),
        (
            OperationFailure(
                "QUOTA_EXCEEDED",
                "You are over it.",
                details=[
                    {"quotaInfo": {"metricName": "compute.googleapis.com/local_ssd", "dimensions": {"zone": "z"}}}
                ],
            ),
            "local_ssd",
            "zone",
            "quota local_ssd in z is used up: ask",
        ),
        (OperationFailure("QUOTA_EXCEEDED", ""), "", "region", "quota of Compute Engine is used up: ask"),
        (
            no_addresses("p", "us-central1", "gpus"),
            "addresses of gpus",
            "region",
            "the subnetwork gpus has no free address: give it a larger range, or name another one in gcp.subnetwork",
        ),
        (OperationFailure("IP_SPACE_EXHAUSTED", ""), "addresses", "region", "the subnetwork has no free address"),
    ],
)
def test_a_quota_has_its_name_and_scope(failure: OperationFailure, quota: str, scope: str, said: str) -> None:
    error = failed(failure)
    assert isinstance(error, QuotaExceeded)
    assert (error.quota, error.scope) == (quota, scope)
    assert said in str(error)


def test_a_quota_of_an_answer_is_reported_likewise() -> None:
    error = answered(Refused(403, "quotaExceeded", "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally."))
    assert isinstance(error, QuotaExceeded)
    assert (error.quota, error.scope) == ("GPUS_ALL_REGIONS", "global")


@pytest.mark.parametrize(
    "code", ["ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "RESOURCE_POOL_EXHAUSTED"]
)
def test_a_stockout_says_what_google_said(code: str) -> None:
    error = failed(OperationFailure(code, "The zone 'projects/p/zones/z' does not have enough resources available."))
    assert type(error) is Stockout
    assert str(error) == f"can't {TRIED}: The zone 'projects/p/zones/z' does not have enough resources available"


@pytest.mark.parametrize(
    ("field", "corrected", "scope"),
    [
        ("resource.machineType", "gcp.machineType", "zone"),
        ("resource.disks[0].initializeParams.sourceImage", "vmImage", "global"),
        ("resource.disks[0].initializeParams.diskType", "gcp.diskType", "zone"),
        ("resource.disks[0].initializeParams.diskSizeGb", "gcp.diskSizeGB", "global"),
        ("resource.guestAccelerators[0].acceleratorType", "gpu.type", "zone"),
        ("resource.guestAccelerators[0].acceleratorCount", "gpu.count", "zone"),
        ("resource.networkInterfaces[0].network", "gcp.network", "global"),
        ("resource.networkInterfaces[0].subnetwork", "gcp.subnetwork", "zone"),
        ("resource.networkInterfaces[0].accessConfigs[0].natIP", "gcp.externalIP", "global"),
        ("resource.tags.items[0]", "gcp.networkTags", "global"),
        ("resource.serviceAccounts[0].email", "gcp.serviceAccount", "global"),
        ("resource.minCpuPlatform", "gcp.minCpuPlatform", "zone"),
        ("resource.scheduling.maxRunDuration", "gcp.maxRunDuration", "global"),
        ("resource.scheduling.preemptionNoticeDuration", "gcp.preemptionNotice", "global"),
        ("resource.scheduling.provisioningModel", "preemptible", "global"),
        ("zone", "gcp.zone", "zone"),
        ("project", "gcp.project", "global"),
        ("resource.name", "", "global"),
    ],
)
def test_a_wrong_value_names_the_field_to_correct(field: str, corrected: str, scope: str) -> None:
    error = answered(invalid(field, "v", "It is wrong."))
    assert field_of(error) == (corrected, scope)
    assert str(error).endswith(f": correct {corrected}" if corrected else "'v'. It is wrong")
    by_location = OperationFailure("INVALID_FIELD_VALUE", "It is wrong.")
    by_location.error["location"] = field
    assert field_of(failed(by_location)) == (corrected, scope)


@pytest.mark.parametrize(
    ("resource", "corrected", "scope"),
    [
        (f"{PLACE}/machineTypes/n9", "gcp.machineType", "zone"),
        (f"{PLACE}/acceleratorTypes/nvidia-x", "gpu.type", "zone"),
        (f"{PLACE}/diskTypes/pd-x", "gcp.diskType", "zone"),
        ("projects/cos-cloud/global/images/cos-1", "vmImage", "global"),
        ("projects/cos-cloud/global/images/family/cos", "vmImage", "global"),
        ("projects/p/global/networks/training", "gcp.network", "global"),
        ("projects/p/regions/us-central1/subnetworks/gpus", "gcp.subnetwork", "zone"),
        (PLACE, "gcp.zone", "zone"),
        ("projects/p", "gcp.project", "global"),
    ],
)
def test_a_missing_resource_names_the_field_to_correct(resource: str, corrected: str, scope: str) -> None:
    assert field_of(answered(not_found(resource))) == (corrected, scope)
    message = f"The resource '{resource}' was not found"
    assert field_of(failed(OperationFailure("RESOURCE_NOT_FOUND", message))) == (corrected, scope)
    assert field_of(answered(Refused(400, "badRequest", message))) == (corrected, scope)


@pytest.mark.parametrize(
    ("message", "corrected"),
    [
        ("Constraint constraints/compute.vmExternalIpAccess violated for project p.", "gcp.externalIP"),
        ("[nvidia-tesla-t4, 1] features are not compatible for creating instance: GPU", "gpu.type"),
        ("Instances with guest accelerators do not support live migration.", "gpu.type"),
        ("The machine type n9 is not for sale.", "gcp.machineType"),
        ("Specified CPU platform is not available in the zone.", "gcp.minCpuPlatform"),
        ("The service account does not exist.", "gcp.serviceAccount"),
        ("The image is deprecated.", "vmImage"),
        ("It is raining.", ""),
    ],
)
def test_a_sentence_without_a_field_is_read(message: str, corrected: str) -> None:
    assert field_of(failed(OperationFailure("CONDITION_NOT_MET", message)))[0] == corrected


def test_a_users_script_is_not_quoted() -> None:
    error = answered(invalid("resource.metadata.items[3].value", "#!/bin/sh\nPASSWORD=hunter2", "It is too long."))
    assert field_of(error)[0] == "startupScript"
    assert "hunter2" not in str(error)


def test_a_machine_that_is_taken_back_before_it_starts() -> None:
    for failure in (preempted_while_starting(), OperationFailure("PREEMPTED", "")):
        error = failed(failure)
        assert isinstance(error, MachineEnded)
        assert error.preempted


@pytest.mark.parametrize("code", ["INTERNAL_ERROR", "RESOURCE_OPERATION_RATE_EXCEEDED", "SOMETHING_NEW", ""])
def test_an_operation_that_failed_is_never_a_fault_that_passes(code: str) -> None:
    error = failed(OperationFailure(code, "Sorry."))
    assert isinstance(error, MachineEnded)
    assert not error.preempted
    assert "Sorry" in str(error)


def test_a_permission_that_an_operation_lacks() -> None:
    message = "Required 'compute.images.useReadOnly' permission for 'projects/q/global/images/i'"
    error = failed(OperationFailure("PERMISSIONS_ERROR", message))
    assert type(error) is InvalidMachine, (
        "who waits until it is granted finds the same operation, which has failed for good"
    )
    assert "compute.images.useReadOnly for projects/q/global/images/i" in str(error)


def test_of_several_errors_the_telling_one_counts() -> None:
    nothing = OperationFailure("INTERNAL_ERROR", "Sorry.")
    lack = stockout("p", "us-central1-a", "n1-standard-4")
    assert isinstance(failed(nothing, lack), Stockout)
    first = failed(lack, preempted_while_starting())
    assert isinstance(first, MachineEnded)
    assert first.preempted
    assert isinstance(failed(), MachineEnded)


def test_googles_sentence_is_on_one_line_and_not_endless() -> None:
    error = answered(Refused(500, "x", "a\nb\x1b[31m" + "c" * 10_000))
    assert "\n" not in str(error)
    assert "\x1b" not in str(error)
    assert len(str(error)) < 600


def test_strange_errors_do_no_harm() -> None:
    body: dict[str, Any] = {"error": {"message": 1, "errors": "?"}}
    assert type(response_error(TRIED, 403, json.dumps(body).encode())) is CloudUnauthorized
