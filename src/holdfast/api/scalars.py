"""Values that many fields share: names, ports, quantities, times. The field adds its own description."""

import re
from fractions import Fraction
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from holdfast.errors import HoldfastError

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"

DnsLabel: TypeAlias = Annotated[str, Meta(min_length=1, max_length=63, pattern=f"^{_LABEL}$")]
DnsSubdomain: TypeAlias = Annotated[str, Meta(min_length=1, max_length=253, pattern=rf"^{_LABEL}(\.{_LABEL})*$")]
# An optional prefix that is a DNS name, a slash, and a name: nvidia.com/gpu.product.
QualifiedName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=317)]
LabelValue: TypeAlias = Annotated[str, Meta(max_length=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")]
Labels: TypeAlias = Annotated[dict[str, LabelValue], Meta(max_length=64)]

Image: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^\S+$")]
Argument: TypeAlias = Annotated[str, Meta(max_length=65536)]
AbsolutePath: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1024, pattern="^/")]
Port: TypeAlias = Annotated[int, Meta(ge=1, le=65535)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Seconds: TypeAlias = Annotated[int, Meta(ge=0, extra_json_schema={"format": "int64"})]
PositiveSeconds: TypeAlias = Annotated[int, Meta(ge=1, extra_json_schema={"format": "int64"})]
Timestamp: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]

# A number, or a string as Kubernetes writes amounts: 32Gi, 500m, 4.
Quantity: TypeAlias = (
    int
    | Annotated[
        str,
        Meta(
            max_length=32,
            pattern=r"^[+-]?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
        ),
    ]
)
Quantities: TypeAlias = Annotated[dict[str, Quantity], Meta(max_length=16)]


def list_map_keys(*names: str) -> dict[str, Any]:
    """Extra schema of a list whose elements are distinguished by these fields: no two alike, merged one by one."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [*names]}


# Amounts as Kubernetes writes them: 500m, 1.5Gi, 2e3.

_SHAPE = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d{1,3})?", re.ASCII)
_UNITS = {
    "": Fraction(1),
    **{unit: Fraction(1, 1000**power) for power, unit in enumerate("mun", 1)},
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", 1)},
}


class InvalidQuantity(HoldfastError):
    """The text is no amount."""


def parse_quantity(text: str | int | float) -> Fraction:
    """The exact value of a quantity."""
    match = _SHAPE.fullmatch(str(text).strip())
    if match is None:
        raise InvalidQuantity(f"{text!r} is not a quantity: write a number with a unit, such as 500m, 2 or 1.5Gi")
    number, unit = Fraction(match[1]), match[2] or ""
    return number * (_UNITS[unit] if unit in _UNITS else Fraction(10) ** int(unit[1:]))


def round_up(value: Fraction) -> int:
    """Rounded up, as Kubernetes does where only whole units count."""
    return -(-value.numerator // value.denominator)
