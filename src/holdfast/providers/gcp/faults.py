"""What Google's refusals mean: an HTTP answer or a failed operation becomes a `ProviderError`. Pure.

An operation that failed stays failed, and a repeated insert finds it again: its error is never one that passes.
"""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from holdfast.providers.errors import (
    CloudUnauthorized,
    InvalidMachine,
    MachineEnded,
    MachineNotFound,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Scope,
    Stockout,
)

LONGEST_QUOTE = 400

# Codes of operations are in capitals, reasons of HTTP answers in camel case.
STOCKOUTS = frozenset(
    ("RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS")
)
QUOTAS = frozenset(("QUOTA_EXCEEDED", "quotaExceeded"))
RATES = frozenset(
    ("RATE_LIMIT_EXCEEDED", "RESOURCE_OPERATION_RATE_EXCEEDED", "rateLimitExceeded", "userRateLimitExceeded")
)
FORBIDDEN = frozenset(("PERMISSIONS_ERROR", "PERMISSION_DENIED", "SERVICE_ACCOUNT_ACCESS_DENIED", "forbidden"))
UNAUTHENTICATED = frozenset(("authError", "UNAUTHENTICATED"))
API_OFF = frozenset(("accessNotConfigured", "SERVICE_DISABLED"))
ABSENT = frozenset(("RESOURCE_NOT_FOUND", "notFound"))
WRONG = frozenset(
    (
        "BAD_REQUEST",
        "CONDITION_NOT_MET",
        "INVALID_FIELD_VALUE",
        "INVALID_USAGE",
        "UNSUPPORTED_OPERATION",
        "badRequest",
        "conditionNotMet",
        "invalid",
        "invalidParameter",
        "required",
    )
)

# Parts of a request and kinds of resources, with the field of a SpotInstanceVM that they come from, and how far the
# judgement goes: what one zone lacks another may have. The first that fits counts.
FieldScope = Literal["zone", "global"]
_REQUEST_FIELDS: tuple[tuple[str, str, FieldScope], ...] = (
    (r"machineType\b", "gcp.machineType", "zone"),
    (r"sourceImage\b", "vmImage", "global"),
    (r"diskType\b", "gcp.diskType", "zone"),
    (r"diskSizeGb\b", "gcp.diskSizeGB", "global"),
    (r"acceleratorType\b", "gpu.type", "zone"),
    (r"guestAccelerators\b", "gpu.count", "zone"),
    (r"subnetwork\b", "gcp.subnetwork", "zone"),
    (r"accessConfigs\b", "gcp.externalIP", "global"),
    (r"network\b", "gcp.network", "global"),
    (r"tags\b", "gcp.networkTags", "global"),
    (r"serviceAccounts?\b", "gcp.serviceAccount", "global"),
    (r"minCpuPlatform\b", "gcp.minCpuPlatform", "zone"),
    (r"maxRunDuration\b", "gcp.maxRunDuration", "global"),
    (r"preemptionNoticeDuration\b", "gcp.preemptionNotice", "global"),
    (r"scheduling\b", "preemptible", "global"),
    (r"metadata\b", "startupScript", "global"),
    (r"zone\b", "gcp.zone", "zone"),
    (r"project\b", "gcp.project", "global"),
)
_RESOURCE_FIELDS: Mapping[str, tuple[str, FieldScope]] = {
    "machineTypes": ("gcp.machineType", "zone"),
    "acceleratorTypes": ("gpu.type", "zone"),
    "diskTypes": ("gcp.diskType", "zone"),
    "images": ("vmImage", "global"),
    "family": ("vmImage", "global"),
    "networks": ("gcp.network", "global"),
    "subnetworks": ("gcp.subnetwork", "zone"),
    "serviceAccounts": ("gcp.serviceAccount", "global"),
    "zones": ("gcp.zone", "zone"),
    "projects": ("gcp.project", "global"),
}
# Sentences without a field or resource, by what they begin to talk of.
_SENTENCES: tuple[tuple[str, str, FieldScope], ...] = (
    (r"vmExternalIpAccess", "gcp.externalIP", "global"),
    (r"accelerator|GPU|nvidia-", "gpu.type", "zone"),
    (r"[Mm]achine type", "gcp.machineType", "zone"),
    (r"CPU platform", "gcp.minCpuPlatform", "zone"),
    (r"service account", "gcp.serviceAccount", "global"),
    (r"[Ii]mage", "vmImage", "global"),
)

_FIELD = re.compile(r"[Ff]ield '(?:resource\.)?([^']+)'")
_RESOURCE = re.compile(r"[Tt]he resource '([^']+)'")
_PERMISSION = re.compile(r"[Rr]equired '([a-zA-Z.]+)' permission for '([^']+)'")
_ACTOR = re.compile(r"does not have access to service account '([^']+)'")
_QUOTA = re.compile(r"[Qq]uota '([A-Za-z0-9_.-]+)'")
_QUOTA_REGION = re.compile(r"in region ([a-z0-9-]+)")
_LIMIT = re.compile(r"Limit: ([0-9.]+)")
_SUBNETWORK = re.compile(r"IP space of '([^']+)'")


class QuotaInfo(Struct, frozen=True, rename="camel"):
    metric_name: str = ""
    limit_name: str = ""
    dimensions: Mapping[str, str] = {}
    limit: float | None = None


class _ErrorDetail(Struct, frozen=True, rename="camel"):
    quota_info: QuotaInfo | None = None


class OperationError(Struct, frozen=True, rename="camel"):
    """One error of an operation."""

    code: str = ""
    message: str = ""
    location: str = ""
    error_details: tuple[_ErrorDetail, ...] = ()

    @property
    def quota(self) -> QuotaInfo | None:
        return next((detail.quota_info for detail in self.error_details if detail.quota_info), None)


class _HttpItem(Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _HttpDetail(Struct, frozen=True):
    reason: str = ""


class _HttpError(Struct, frozen=True):
    message: str = ""
    status: str = ""
    errors: tuple[_HttpItem, ...] = ()
    details: tuple[_HttpDetail, ...] = ()


class _HttpBody(Struct, frozen=True):
    error: _HttpError = _HttpError()


class MachineNameTaken(ProviderError):
    """The name is taken."""


def response_error(tried: str, status: int, body: bytes, *, retry_after_s: float | None = None) -> ProviderError:
    """The error for an answer that is none of success. tried: as in "make machine a in us-central1-a"."""
    try:
        refusal = msgspec.json.decode(body, type=_HttpBody).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        refusal = _HttpError()
    reasons = {item.reason for item in refusal.errors} | {detail.reason for detail in refusal.details}
    message = refusal.message or next((item.message for item in refusal.errors), "")
    said = f"can't {tried}: {quoted(message) or f'the answer is {status}'}"
    if status == 429 or (status in (403, 503) and reasons & RATES):
        return RateLimited(said, retry_after_s=retry_after_s)
    if reasons & STOCKOUTS:
        return Stockout(said)
    if status in (403, 413) and reasons & QUOTAS:
        return _quota_exceeded(tried, message, None)
    if status == 401 or reasons & UNAUTHENTICATED:
        return CloudUnauthorized(f"{said}: the key may be revoked, or the account disabled")
    if status == 403 or reasons & FORBIDDEN:
        return _forbidden(tried, message, is_off=bool(reasons & API_OFF))
    if status == 404:
        return _absent(tried, message)
    if status == 409:
        return MachineNameTaken(said)
    if status in (400, 412):
        return _invalid(tried, message)
    return ProviderError(said)


def operation_error(tried: str, errors: tuple[OperationError, ...]) -> ProviderError:
    """The error for a failed operation; of several errors the one that says most about another try."""
    error = min(errors, key=_rank, default=OperationError(message="it failed without a word"))
    if error.code in STOCKOUTS:
        return Stockout(f"can't {tried}: {quoted(error.message) or error.code}")
    if error.code in QUOTAS:
        return _quota_exceeded(tried, error.message, error.quota)
    if "IP_SPACE_EXHAUSTED" in error.code:
        return _no_address(tried, error.message)
    if error.code in FORBIDDEN:
        # Once it is granted, a new order does better; this operation never will.
        return InvalidMachine(str(_forbidden(tried, error.message, is_off=False)))
    if is_preemption(error):
        return MachineEnded(f"can't {tried}: {quoted(error.message) or error.code}", preempted=True)
    if error.code in ABSENT:
        return _absent(tried, error.message)
    if error.code in WRONG:
        return _invalid(tried, error.message, error.location)
    text = ": ".join(filter(None, (error.code, quoted(error.message))))
    return MachineEnded(f"can't {tried}: {text}: Google gave up, and a new order may do better", preempted=False)


def _rank(error: OperationError) -> int:
    """Which of several errors counts: one that rules out a zone before one that nobody knows."""
    known = (STOCKOUTS, QUOTAS, FORBIDDEN, ABSENT, WRONG)
    if is_preemption(error):
        return -1
    return next((at for at, codes in enumerate(known) if error.code in codes), len(known))


def is_preemption(error: OperationError) -> bool:
    """A spot machine can be taken back before it has started."""
    return error.code == "PREEMPTED" or (error.code in WRONG and "preempt" in error.message.lower())


def _quota_exceeded(tried: str, message: str, info: QuotaInfo | None) -> QuotaExceeded:
    found = _QUOTA.search(message)
    name = found[1] if found else (info.limit_name or info.metric_name.rpartition("/")[2]) if info else ""
    scope = _quota_scope(message, info)
    region = _QUOTA_REGION.search(message)
    place = region[1] if region else info.dimensions.get(scope, "") if info and scope != "global" else ""
    most = _LIMIT.search(message)
    limit = info.limit if info and info.limit is not None else float(most[1]) if most else None
    shown_limit = f" (limit {limit:g})" if limit is not None else ""
    return QuotaExceeded(
        f"can't {tried}: the project's quota {name or 'of Compute Engine'}{f' in {place}' if place else ''} is used "
        f"up{shown_limit}: ask Google to raise it, or use another region or machine type",
        quota=name,
        scope=scope,
    )


def _quota_scope(message: str, info: QuotaInfo | None) -> Scope:
    if "globally" in message:
        return "global"
    if info is None or "region" in info.dimensions:
        return "region"
    return "zone" if "zone" in info.dimensions else "global"


def _no_address(tried: str, message: str) -> QuotaExceeded:
    found = _SUBNETWORK.search(message)
    subnetwork = found[1].rpartition("/")[2] if found else ""
    return QuotaExceeded(
        f"can't {tried}: the subnetwork{f' {subnetwork}' if subnetwork else ''} has no free address: give it a larger "
        "range, or name another one in gcp.subnetwork",
        quota=f"addresses of {subnetwork}" if subnetwork else "addresses",
        scope="region",
    )


def _forbidden(tried: str, message: str, *, is_off: bool) -> CloudUnauthorized:
    if is_off:
        return CloudUnauthorized(
            f"can't {tried}: {quoted(message)}: enable the Compute Engine API in the project, and its billing"
        )
    if needed := _PERMISSION.search(message):
        return CloudUnauthorized(
            f"can't {tried}: the credential lacks the permission {needed[1]} for {needed[2]}: grant its service "
            "account a role with it"
        )
    if actor := _ACTOR.search(message):
        return CloudUnauthorized(
            f"can't {tried}: the credential lacks the permission iam.serviceAccounts.actAs for {actor[1]}: grant its "
            "service account the role Service Account User on that account"
        )
    return CloudUnauthorized(f"can't {tried}: {quoted(message) or 'it is forbidden'}")


def _absent(tried: str, message: str) -> ProviderError:
    found = _RESOURCE.search(message)
    parts = found[1].split("/") if found else []
    kind = next((part for part in reversed(parts) if part in {"instances", "operations", *_RESOURCE_FIELDS}), "")
    if kind in _RESOURCE_FIELDS:
        field, scope = _RESOURCE_FIELDS[kind]
        return InvalidMachine(f"can't {tried}: {quoted(message)}: correct {field}", field=field, scope=scope)
    return MachineNotFound(f"can't {tried}: {quoted(message) or 'it is not there'}")


def _invalid(tried: str, message: str, location: str = "") -> InvalidMachine:
    found = _FIELD.search(message)
    named = location.removeprefix("resource.") or (found[1] if found else "")
    field, scope = _field(named, message)
    if not field and isinstance(absent := _absent(tried, message), InvalidMachine):
        return absent
    # What Google quotes of the metadata is a script of the user, which may hold anything.
    said = "" if field == "startupScript" else quoted(message)
    parts = (f"can't {tried}", said or "Google refuses the machine", field and f"correct {field}")
    return InvalidMachine(": ".join(filter(None, parts)), field=field, scope=scope)


def _field(named: str, message: str) -> tuple[str, FieldScope]:
    for pattern, field, scope in _REQUEST_FIELDS if named else ():
        if re.search(pattern, named):
            return field, scope
    for pattern, field, scope in _SENTENCES:
        if re.search(pattern, message):
            return field, scope
    return "", "global"


def quoted(message: str) -> str:
    """Google's own sentence for people, on one line and without its full stop."""
    text = " ".join("".join(each if each.isprintable() else " " for each in message).split()).rstrip(".")
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"
