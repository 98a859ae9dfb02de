"""Whole objects as YAML and JSON, in the order and the quoting that kubectl uses."""

import json
import re
from collections.abc import Sequence

import yaml

from holdfast.cluster.protocol import JSON


def without_server_fields(document: JSON) -> JSON:
    """Without what only the server itself is interested in."""
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    return {**document, "metadata": metadata}


def as_list(documents: Sequence[JSON]) -> JSON:
    return {"apiVersion": "v1", "items": list(documents), "kind": "List", "metadata": {"resourceVersion": ""}}


def to_json(document: JSON) -> str:
    return json.dumps(document, indent=4, sort_keys=True, ensure_ascii=False)


def to_yaml(document: JSON) -> str:
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("\n")


def to_flow(document: JSON) -> str:
    """On one line, as a manifest may hold it."""
    text: str = yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, width=float("inf"), allow_unicode=True, default_flow_style=True
    )
    return text.strip()


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, and quotes around whatever another reader would take for a number."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def choose_scalar_style(self) -> str:
        style: str = super().choose_scalar_style()
        return '"' if style == "'" else style


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # A block can't hold what YAML has to escape, nor a line that ends with a space.
    block = "\n" in text and not re.search(r"[^\n\x20-\x7e\xa0-\ud7ff]| \n| \Z", text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if block else None)


_Dumper.add_representer(str, _text)
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)\Z"),
    list("-+.0123456789"),
)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"0o[0-7]+\Z"), ["0"])
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(?:y|Y|n|N)\Z"), list("yYnN"))
