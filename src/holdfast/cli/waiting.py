"""What can be waited for, and when waiting has become pointless."""

import re
from collections.abc import Callable

from msgspec import Struct

from holdfast.api.durations import is_duration, seconds
from holdfast.cli.failing import Misused
from holdfast.cluster.printing.paths import BadPath, compile_path
from holdfast.cluster.protocol import JSON

# Conditions with which an object is done for good, by kind.
_LAST_CONDITIONS = {"TrainingJob": ("Succeeded", "Failed"), "Job": ("Complete", "Failed")}
# Fields that say how an object stands: once it is done, they stay.
_STANDING = (".status.state", ".status.phase")


class Goal(Struct, frozen=True, kw_only=True):
    """`words` says it to people; `stays` that an object which is done won't change in this respect."""

    words: str
    is_met: Callable[[JSON], bool]
    stays: bool


def parse_goal(text: str) -> Goal | None:
    """None stands for deletion."""
    if text == "delete":
        return None
    form, _, rest = text.partition("=")
    if form == "condition" and rest:
        return _condition(rest)
    if form == "jsonpath" and rest:
        return _jsonpath(rest)
    raise Misused(f"--for={text}: write condition=NAME, condition=NAME=VALUE, jsonpath='{{.PATH}}'=VALUE or delete")


def parse_seconds(text: str) -> float:
    """A duration as Go writes it, or a plain number of seconds."""
    if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII):
        return float(text)
    if not is_duration(text):
        raise Misused(f"--timeout={text} is no duration: write 30s, 5m or 1h30m")
    return seconds(text)


def obstacle(kind: str, document: JSON, goal: Goal) -> str:
    """Why the goal can't be reached any more; empty while it can."""
    if not goal.stays:
        return ""
    for condition in document.get("status", {}).get("conditions") or ():
        if condition.get("type") in _LAST_CONDITIONS.get(kind, ()) and condition.get("status") == "True":
            said = condition.get("message") or condition.get("reason") or ""
            return f"it has ended as {condition['type']}" + (f": {said}" if said else "")
    return ""


def standing(document: JSON) -> str:
    """How an object stands, in the words of its status."""
    status = document.get("status") or {}
    state, message = status.get("state") or status.get("phase") or "", status.get("message") or ""
    return ": ".join(filter(None, (state, message)))


def _condition(text: str) -> Goal:
    name, _, value = text.partition("=")
    wanted = (value or "True").lower()

    def is_met(document: JSON) -> bool:
        generation = document["metadata"].get("generation", 0)
        for each in document.get("status", {}).get("conditions") or ():
            if each.get("type", "").lower() == name.lower():
                current = each.get("observedGeneration") or generation
                return bool(current >= generation and each.get("status", "").lower() == wanted)
        return False

    return Goal(words=f"condition {text}", is_met=is_met, stays=True)


def _jsonpath(text: str) -> Goal:
    path, braces, rest = text.partition("}")
    if not braces:
        path, _, value = text.partition("=")
    else:
        path, value = path + braces, rest.removeprefix("=")
    any_value = not value
    try:
        find = compile_path(path)
    except BadPath as error:
        raise Misused(f"--for=jsonpath: {error}") from None

    def is_met(document: JSON) -> bool:
        found = find(document)
        return bool(found) and (any_value or any(_text(each) == value for each in found))

    return Goal(words=f"{path} {value}".strip(), is_met=is_met, stays=path.strip("{}") in _STANDING)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
