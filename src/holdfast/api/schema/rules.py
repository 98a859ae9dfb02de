"""Rules that span fields: written once here, enforced by the API server and by `holdfast validate` alike."""

from enum import StrEnum

from msgspec import Struct


class Reason(StrEnum):
    """How the API server classes a refusal; the word shows up in front of the message."""

    INVALID = "FieldValueInvalid"
    REQUIRED = "FieldValueRequired"
    FORBIDDEN = "FieldValueForbidden"


class Rule(Struct, frozen=True, kw_only=True, gc=False):
    """One CEL expression that must hold, and what to tell the user when it does not.

    `field` is the path from the struct that carries the rule to the field to blame, such as `.s3Bucket`.
    """

    rule: str
    message: str
    field: str = ""
    reason: Reason = Reason.INVALID


def unchanged(path: str) -> str:
    """CEL: the field at `.spec.a.b` is what it was, where every step below spec may be absent.

    Comparing optionals (`self.?a == oldSelf.?a`) would be shorter, but the API server can't bound its cost.
    """
    steps = path.removeprefix(".spec.").split(".")
    new, old = (_present(f"{side}.spec", steps) for side in ("self", "oldSelf"))
    return f"({new}) == ({old}) && (!({new}) || self{path} == oldSelf{path})"


def _present(root: str, steps: list[str]) -> str:
    paths = (".".join((root, *steps[: depth + 1])) for depth in range(len(steps)))
    return " && ".join(f"has({path})" for path in paths)


def immutable_while(paths: tuple[str, ...], *, while_: str, message: str) -> tuple[Rule, ...]:
    """One transition rule for each path, so that the refusal names the field that was changed."""
    return tuple(
        Rule(rule=f"!({while_}) || ({unchanged(path)})", message=message, field=path, reason=Reason.FORBIDDEN)
        for path in paths
    )


def suspend_immutable_while(*, while_: str, message: str) -> Rule:
    """The same for spec.suspend, where false and absent are one."""
    suspended = "(has({side}.spec.suspend) && {side}.spec.suspend)"
    rule = f"!({while_}) || {suspended.format(side='self')} == {suspended.format(side='oldSelf')}"
    return Rule(rule=rule, message=message, field=".spec.suspend", reason=Reason.FORBIDDEN)


# A name this long leaves room for every suffix that a child adds, within the 63 characters of a pod's host name.
SHORT_NAME = Rule(
    rule="self.metadata.name.matches('^[a-z]([-a-z0-9]{0,44}[a-z0-9])?$')",
    message="use at most 46 lower-case letters, digits and '-', starting with a letter and not ending with '-': "
    "the names of pods and services are derived from it",
    field=".metadata.name",
)

# With few digits, and the 16 letters that the fields allow, no such text overflows Go's duration of 292 years.
_GO_DURATION = r"^([0-9]{1,6}([.][0-9]{1,3})?(ms|s|m|h))+$"


def duration_rule(
    field: str,
    *,
    optional: bool,
    shortest: tuple[str, str] = ("1s", "a second"),
    longest: tuple[str, str] = ("8760h", "a year"),
    word: str = "",
) -> Rule:
    """The string field is a Go duration between two that are given with their names, or the word."""
    absent = f"!has(self.{field}) || " if optional else ""
    other = f"self.{field} == '{word}' || " if word else ""
    return Rule(
        rule=f"{absent}{other}(self.{field}.matches('{_GO_DURATION}') && "
        f"duration(self.{field}) >= duration('{shortest[0]}') && duration(self.{field}) <= duration('{longest[0]}'))",
        message=f"write a duration from {shortest[1]} to {longest[1]} with its units, "
        'such as "90s", "30m" or "1h30m"' + (f', or "{word}"' if word else ""),
        field=f".{field}",
    )


def label_keys_rule(field: str) -> Rule:
    """The keys of the map are ones that Kubernetes takes for labels; a structural schema can't bound keys."""
    return Rule(
        rule=f"!has(self.{field}) || self.{field}.all(key, "
        "key.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",
        message="write keys of at most 63 letters, digits, '-', '_' and '.', with a DNS name and '/' in front or none, "
        "such as team or example.com/team",
        field=f".{field}",
    )
