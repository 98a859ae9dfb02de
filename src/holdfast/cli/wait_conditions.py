"""The conditions of `holdfast wait`, and when a condition has become unreachable."""

import re
from collections.abc import Callable
from datetime import datetime

from msgspec import Struct

from holdfast.cli.errors import UsageError
from holdfast.cluster.printing.jsonpath import InvalidJsonPath, compile_path
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import OURS, KnownKind
from holdfast.times import age, is_duration, parse_duration_s

# Terminal conditions by kind.
_LAST_CONDITIONS = {
    "TrainingJob": ("Succeeded", "Failed"),
    "GPUWorkload": ("Succeeded", "Failed"),
    "SpotInstanceJob": ("Succeeded", "Failed"),
    "Job": ("Complete", "Failed"),
}
# Paths of the state of an object: the state of a finished object does not change.
_STATE_PATHS = (".status.state", ".status.phase")


class WaitCondition(Struct, frozen=True, kw_only=True):
    """`description` is for users; `stays`: the condition of a finished object does not change."""

    description: str
    is_met: Callable[[JSON], bool]
    stays: bool


def parse_condition(text: str) -> WaitCondition | None:
    """Parse --for; None means deletion."""
    if text == "delete":
        return None
    if not text:
        raise UsageError("say what to wait for with --for, such as --for=condition=Succeeded or --for=delete")
    form, _, rest = text.partition("=")
    if form == "condition" and rest:
        return _condition(rest)
    if form == "jsonpath" and rest:
        return _jsonpath(rest)
    raise UsageError(f"--for={text}: write condition=NAME, condition=NAME=VALUE, jsonpath='{{.PATH}}'=VALUE or delete")


def parse_seconds(text: str) -> float:
    """Parse a Go duration or a plain number of seconds."""
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        return float(text)
    if not is_duration(text):
        raise UsageError(f"--timeout={text} is no duration: write 30s, 5m or 1h30m")
    return parse_duration_s(text)


def unreachable_reason(kind: str, document: JSON, condition: WaitCondition) -> str:
    """Why the condition can't be met any more; empty while it can."""
    last = _last_condition(kind, document)
    if not condition.stays or last is None:
        return ""
    message = last.get("message") or last.get("reason") or ""
    return f"it has ended as {last['type']}" + (f": {message}" if message else "")


def ended(known: KnownKind, document: JSON, now: datetime) -> str:
    """How and when a holdfast object has ended, as text; empty while it has not."""
    last = _last_condition(known.resource.kind, document)
    if last is None or known not in OURS:
        return ""
    status = document["status"]
    since = status.get("completionTime") or last.get("lastTransitionTime")
    return f"it has ended ({status.get('state') or status.get('phase') or last['type']} {age(since, now)} ago)"


def _last_condition(kind: str, document: JSON) -> JSON | None:
    """The terminal condition of the object."""
    for condition in (document.get("status") or {}).get("conditions") or ():
        if condition.get("type") in _LAST_CONDITIONS.get(kind, ()) and condition.get("status") == "True":
            return dict(condition)
    return None


def status_summary(document: JSON) -> str:
    """State and message of the status of an object."""
    status = document.get("status") or {}
    state, message = status.get("state") or status.get("phase") or "", status.get("message") or ""
    return ": ".join(filter(None, (state, message)))


def _condition(text: str) -> WaitCondition:
    name, _, value = text.partition("=")
    wanted = (value or "True").lower()

    def is_met(document: JSON) -> bool:
        generation = document["metadata"].get("generation", 0)
        for each in document.get("status", {}).get("conditions") or ():
            if each.get("type", "").lower() == name.lower():
                current = each.get("observedGeneration") or generation
                return bool(current >= generation and each.get("status", "").lower() == wanted)
        return False

    return WaitCondition(description=f"condition {text}", is_met=is_met, stays=True)


def _jsonpath(text: str) -> WaitCondition:
    path, braces, rest = text.partition("}")
    if not braces:
        path, _, value = text.partition("=")
    else:
        path, value = path + braces, rest.removeprefix("=")
    any_value = not value
    try:
        find = compile_path(path)
    except InvalidJsonPath as error:
        raise UsageError(f"--for=jsonpath: {error}") from None

    def is_met(document: JSON) -> bool:
        found = find(document)
        return bool(found) and (any_value or any(_text(each) == value for each in found))

    return WaitCondition(description=f"{path} {value}".strip(), is_met=is_met, stays=path.strip("{}") in _STATE_PATHS)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
