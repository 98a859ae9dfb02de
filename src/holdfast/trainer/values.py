"""Values out of an environment, each with the sentence that says what it should have been. Empty means not set."""

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from holdfast.trainer.errors import BadSetting

Environ = Mapping[str, str]


def integer(environ: Environ, name: str, default: int, *, least: int = 0, most: int = 1_000_000_000) -> int:
    text = environ.get(name, "") or str(default)
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text) is None or not least <= int(text) <= most:
        raise BadSetting(f"{name} is {text!r}: write a whole number from {least} to {most}")
    return int(text)


def number(
    environ: Environ, name: str, default: float, *, above: float | None = None, below: float = math.inf
) -> float:
    """A finite number ≥ 0, or > above where that is given, and < below."""
    text = environ.get(name, "") or repr(default)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 <= value < below) or (above is not None and value <= above):
        least = "of at least 0" if above is None else f"above {above:g}"
        bound = "" if math.isinf(below) else f" and below {below:g}"
        raise BadSetting(f"{name} is {text!r}: write a number {least}{bound}")
    return value


def flag(environ: Environ, name: str) -> bool:
    return choice(environ, name, "false", ("true", "false")) == "true"


def choice(environ: Environ, name: str, default: str, known: Collection[str], *, otherwise: str = "") -> str:
    text = environ.get(name, "") or default
    if text not in known:
        raise BadSetting(f"{name} is {text!r}: the reference trainer knows {', '.join(known)}{otherwise}")
    return text


def path(environ: Environ, name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None
