"""Manifests as kubectl reads them: YAML or JSON, one object or many.

PyYAML alone would read other values than kubectl does: 5e-05 as a string, 12:30 as a number of minutes, a date as a
date, y as a letter; and it takes the last of two equal keys without an error.
"""

import json
import math
import re
from collections.abc import Hashable, Iterator
from contextlib import suppress
from typing import Any, NoReturn

import yaml
from yaml.constructor import ConstructorError

from holdfast.errors import HoldfastError

# Aliases can make a small text a huge object, or an endless one.
MOST_NODES = 1_000_000
MERGE = "tag:yaml.org,2002:merge"


class InvalidManifest(HoldfastError):
    """The text is no YAML or JSON that kubectl would take."""


def documents(text: str) -> Iterator[Any]:
    """Every document of the text that is not empty, as plain JSON values."""
    try:
        for document in _documents(text):
            json.dumps(document, ensure_ascii=False).encode()
            yield document
    except RecursionError:
        raise InvalidManifest("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise InvalidManifest("it holds half a character (a surrogate without its other half)") from None
    except (OverflowError, ValueError):
        raise InvalidManifest("it holds a number that is too long to be read") from None


def _documents(text: str) -> Iterator[Any]:
    if text.lstrip().startswith("{"):
        with suppress(json.JSONDecodeError):  # YAML in flow style begins like JSON, too
            return iter([*_json_documents(text)])
    return _yaml_documents(text)


def _json_documents(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder(
        object_pairs_hook=_unique,
        parse_constant=_reject_constant,
        parse_float=_finite,
        parse_int=lambda digits: _int64_or_float(int(digits)),
    )
    position = _skip_blanks(text, 0)
    while position < len(text):
        document, position = decoder.raw_decode(text, position)
        yield document
        position = _skip_blanks(text, position)


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidManifest(f'the field "{name}" is there twice: keep one')
        found[name] = value
    return found


def _int64_or_float(number: int) -> float:
    """An integer that does not fit into 64 bits is a double to the server's decoder."""
    return number if -(2**63) <= number < 2**63 else float(number)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _reject_constant(text)


def _reject_constant(text: str) -> NoReturn:
    raise InvalidManifest(f"{text} is not a number in JSON")


def _yaml_documents(text: str) -> Iterator[Any]:
    try:
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            if node is not None and node.tag != "tag:yaml.org,2002:null":
                _expanded_size(node, {})
                yield loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InvalidManifest(f"{place}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise InvalidManifest(str(error).splitlines()[0]) from None


class _Loader(yaml.SafeLoader):
    """YAML 1.1 with the scalars of kubectl's parser, and no key twice."""

    yaml_implicit_resolvers = {}
    yaml_constructors = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != MERGE and (word := self._key_text(key)) in seen:
                raise ConstructorError(None, None, f'the field "{word}" is there twice: keep one', key.start_mark)
            seen.add(self._key_text(key))
        self.flatten_mapping(node)
        return {self._key_text(key): self.construct_object(value, deep=True) for key, value in node.value}

    def _key_text(self, key: yaml.Node) -> str:
        """JSON knows string keys only; kubectl turns 1 and true into words."""
        if not isinstance(key, yaml.ScalarNode):
            raise ConstructorError(None, None, "a key must be a word", key.start_mark)
        value = key.value if key.tag == MERGE else self.construct_object(key)
        return value if isinstance(value, str) else json.dumps(value)


def _expanded_size(node: yaml.Node, known: dict[int, int]) -> int:
    """How many nodes a node stands for once its aliases are followed."""
    if id(node) in known:
        if not known[id(node)]:
            raise ConstructorError(None, None, "an alias contains itself", node.start_mark)
        return known[id(node)]
    known[id(node)] = 0
    inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    weight = 1 + (0 if isinstance(node, yaml.ScalarNode) else sum(_expanded_size(part, known) for part in inner))
    if weight > MOST_NODES:
        raise ConstructorError(None, None, "aliases make this too large", node.start_mark)
    known[id(node)] = weight
    return weight


def _int(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = loader.construct_scalar(node).replace("_", "")
    octal = re.fullmatch(r"([-+]?)0([0-7]+)", text)
    return _int64_or_float(int(f"{octal[1]}0o{octal[2]}" if octal else text, 0))


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = loader.construct_scalar(node)
    number = math.inf if text[-1:].isalpha() else float(text)
    if not math.isfinite(number):
        raise ConstructorError(None, None, f"{text} is not a number in JSON", node.start_mark)
    return number


def _bool(loader: _Loader, node: yaml.ScalarNode) -> bool:
    return loader.construct_scalar(node).lower() in ("y", "yes", "true", "on")


def _reject_tag(loader: _Loader, node: yaml.Node) -> NoReturn:
    raise ConstructorError(None, None, f"{node.tag} is no type of JSON", node.start_mark)


_SCALARS = {
    "null": (r"~|null|Null|NULL|", "~nN\0"),
    "bool": (
        r"y|Y|yes|Yes|YES|on|On|ON|true|True|TRUE|n|N|no|No|NO|off|Off|OFF|false|False|FALSE",
        "yYnNtTfFoO",
    ),
    "int": (r"[-+]?(0b[01][01_]*|0x[0-9a-fA-F][0-9a-fA-F_]*|0o[0-7][0-7_]*|0[0-7_]*|[1-9][0-9_]*)", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "merge": (r"<<", "<"),
}
for _name, (_pattern, _first) in _SCALARS.items():
    _starts = ["" if letter == "\0" else letter for letter in _first]
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(rf"(?:{_pattern})\Z"), _starts)

_CONSTRUCTORS = {
    "null": _Loader.construct_yaml_null,
    "bool": _bool,
    "int": _int,
    "float": _float,
    "str": _Loader.construct_yaml_str,
    "seq": _Loader.construct_yaml_seq,
    "map": _Loader.construct_yaml_map,
    "merge": _Loader.construct_yaml_str,  # only a key means a merge
}
for _name, _constructor in _CONSTRUCTORS.items():
    _Loader.add_constructor(f"tag:yaml.org,2002:{_name}", _constructor)
_Loader.add_constructor(None, _reject_tag)
