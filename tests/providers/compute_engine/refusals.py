"""Refusals in Google's words and shape: of a request, and of an operation."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.providers.gcp.http import HttpResponse

STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


class Refused(Exception):
    """A request is answered so."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        details: Sequence[Mapping[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        error: dict[str, Any] = {
            "code": status,
            "message": message,
            "errors": [{"message": message, "domain": "global", "reason": reason}],
        }
        if details:
            error["details"] = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", **detail} for detail in details]
        if status in STATUS:
            error["status"] = STATUS[status]
        self.response = HttpResponse(
            status=status,
            headers={"Content-Type": "application/json; charset=UTF-8", **(headers or {})},
            body=msgspec.json.encode({"error": error}),
        )


def not_found(resource: str) -> Refused:
    return Refused(404, "notFound", f"The resource '{resource}' was not found")


def taken(resource: str) -> Refused:
    return Refused(409, "alreadyExists", f"The resource '{resource}' already exists")


def invalid(field: str, value: object, why: str) -> Refused:
    return Refused(400, "invalid", f"Invalid value for field '{field}': '{value}'. {why}")


def forbidden(permission: str, resource: str) -> Refused:
    return Refused(403, "forbidden", f"Required '{permission}' permission for '{resource}'")


def no_actor(account: str, user: str) -> Refused:
    return Refused(
        400,
        "SERVICE_ACCOUNT_ACCESS_DENIED",
        f"The user does not have access to service account '{account}'.  User: '{user}'.  Ask a project owner to grant "
        "you the iam.serviceAccountUser role on the service account",
    )


def unauthenticated() -> Refused:
    return Refused(
        401,
        "authError",
        "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid "
        "authentication credential.",
    )


def unavailable() -> Refused:
    return Refused(503, "backendError", "The service is currently unavailable.")


def too_fast(retry_after_s: int | None = None) -> Refused:
    return Refused(
        403,
        "rateLimitExceeded",
        "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service 'compute.googleapis.com' "
        "for consumer 'project_number:123456789012'.",
        details=[{"reason": "RATE_LIMIT_EXCEEDED", "domain": "googleapis.com"}],
        headers={} if retry_after_s is None else {"Retry-After": str(retry_after_s)},
    )


class OperationFailure(Exception):
    """An operation ends with this error."""

    def __init__(
        self, code: str, message: str, *, status: int = 400, details: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        super().__init__(message)
        self.error: dict[str, Any] = {"code": code, "message": message}
        if details:
            self.error["errorDetails"] = list(details)
        self.status = status


def stockout(project: str, zone: str, machine_type: str) -> OperationFailure:
    info = {
        "errorInfo": {
            "reason": "resource_availability",
            "domain": "compute.googleapis.com",
            "metadatas": {"vmType": machine_type, "zone": zone, "zonesAvailable": "", "attachment": ""},
        }
    }
    return OperationFailure(
        "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        f"The zone 'projects/{project}/zones/{zone}' does not have enough resources available to fulfill the request, "
        "'(resource type:compute)'.",
        status=503,
        details=[info],
    )


def over_quota(metric: str, region: str, limit: float) -> OperationFailure:
    """region: empty for a quota of the whole project."""
    where = f"in region {region}" if region else "globally"
    dashed = metric.replace("_", "-")
    quota = {
        "metricName": f"compute.googleapis.com/{metric.lower()}",
        "limitName": f"{dashed}-per-project-region" if region else f"{dashed}-per-project",
        "dimensions": {"region": region} if region else {"global": "global"},
        "limit": limit,
    }
    return OperationFailure(
        "QUOTA_EXCEEDED",
        f"Quota '{metric}' exceeded.  Limit: {limit:.1f} {where}.",
        status=403,
        details=[{"quotaInfo": quota}],
    )


def no_addresses(project: str, region: str, subnetwork: str) -> OperationFailure:
    return OperationFailure(
        "IP_SPACE_EXHAUSTED_WITH_DETAILS",
        f"IP space of 'projects/{project}/regions/{region}/subnetworks/{subnetwork}' is exhausted. Insufficient free "
        "IP addresses in the IP range '10.128.0.0/20'.",
    )


def preempted_while_starting() -> OperationFailure:
    return OperationFailure("UNSUPPORTED_OPERATION", "Instance failed to start due to preemption.")
