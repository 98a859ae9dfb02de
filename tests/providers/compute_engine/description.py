"""Google's description of Compute Engine: which methods there are, and what their requests and answers look like."""

import re
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.providers.compute_engine.provision import description_file

Schema = Mapping[str, Any]


class Method(NamedTuple):
    """id: as in instances.insert. request, answer: names of schemas; empty without a body."""

    id: str
    path: str
    parameters: Mapping[str, Schema]
    request: str
    answer: str


class Found(NamedTuple):
    method: Method
    arguments: Mapping[str, str]


class Description:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self.schemas: Mapping[str, Schema] = document["schemas"]
        self.global_parameters: Mapping[str, Schema] = document["parameters"]
        self.version: str = document["serviceVersion"]
        self._document = document

    def find(self, verb: str, path: str) -> Found | None:
        """The method for a path below compute/v1/."""
        for method in self._methods.get((verb, path.count("/")), ()):
            if match := _pattern(method.path).fullmatch(path):
                return Found(method, match.groupdict())
        return None

    @cached_property
    def _methods(self) -> Mapping[tuple[str, int], list[Method]]:
        """By verb and number of slashes."""
        found: dict[tuple[str, int], list[Method]] = {}
        for resource, content in self._document["resources"].items():
            for name, method in content.get("methods", {}).items():
                found.setdefault((method["httpMethod"], method["path"].count("/")), []).append(
                    Method(
                        id=f"{resource}.{name}",
                        path=method["path"],
                        parameters=method.get("parameters", {}),
                        request=method.get("request", {}).get("$ref", ""),
                        answer=method.get("response", {}).get("$ref", ""),
                    )
                )
        return found


@cache
def _pattern(path: str) -> re.Pattern[str]:
    """Made at need: a thousand would take their time."""
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path)))


@cache
def load(file: Path) -> Description:
    return Description(msgspec.json.decode(file.read_bytes()))


def description() -> Description:
    """A test without it fails: a skipped one would look like a passed one."""
    file = description_file()
    if not file.exists():
        pytest.fail(f"Google's description of Compute Engine is not at {file}: run `make compute-engine`")
    return load(file)
