"""Amounts as Kubernetes writes them: 500m, 1.5Gi, 2e3."""

import re
from fractions import Fraction

from holdfast.errors import HoldfastError

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
