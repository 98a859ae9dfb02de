"""`holdfast crds`: the CustomResourceDefinitions of all kinds, as YAML. `holdfast validate`: manifests against them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
import yaml
from msgspec import Struct

from holdfast.api.advice import advice
from holdfast.api.kinds import KINDS, kind_of
from holdfast.api.manifests import InvalidManifest, documents
from holdfast.api.schema.crd import crd_manifest
from holdfast.api.schema.validation import subject, validate_object
from holdfast.api.schema.violations import ValidationFailed
from holdfast.cli.errors import UsageError, printable
from holdfast.cli.resource_args import items, texts
from holdfast.cli.resource_args import kind_of as find_manifest_kind


def print_crds() -> None:
    typer.echo("---\n".join(manifests().values()), nl=False)


def write_crds(output: Path) -> None:
    """Write one file for each kind."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in manifests().items():
            (output / name).write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"can't write the CustomResourceDefinitions to {output}: {error.strerror}", err=True)
        raise typer.Exit(2) from None


def manifests() -> dict[str, str]:
    """The YAML of each definition, by file name."""
    return {f"{kind.group}_{kind.plural}.yaml": _yaml(crd_manifest(kind)) for kind in KINDS}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        """Repeat shared parts instead of anchors, which are hard to read."""
        return True


def _yaml(document: object) -> str:
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return text


# `holdfast validate`: validates manifests like the API server, without a cluster.


REFUSED, UNREADABLE = 1, 2


class ValidationLine(Struct, frozen=True):
    """One line of the output, and its exit code."""

    text: str
    code: int = 0


def validate_files(filenames: Sequence[str]) -> int:
    """Print a line for every problem or valid object; returns the worst exit code."""
    worst = 0
    for finding in (finding for name in filenames for finding in _findings(name)):
        typer.echo(printable(finding.text), err=finding.code == UNREADABLE)
        worst = max(worst, finding.code)
    return worst


def _findings(name: str) -> Iterator[ValidationLine]:
    try:
        for source, text in texts(name):
            yield from _checked(source, text)
    except OSError as error:
        yield ValidationLine(f"{error.filename or name}: can't be read: {error.strerror or error}", UNREADABLE)


def _checked(source: str, text: bytes) -> Iterator[ValidationLine]:
    """A line for every problem of every object, or one line for a valid object."""
    number = 0
    try:
        for number, document in enumerate(documents(text.decode("utf-8-sig")), start=1):
            for item in items(document):
                yield from _validate_object(f"{source}: document {number}", item)
    except UnicodeDecodeError:
        yield ValidationLine(f"{source}: can't be read: it is not text in UTF-8", UNREADABLE)
    except InvalidManifest as error:
        yield ValidationLine(f"{source}: document {number + 1}: can't be read as YAML or JSON: {error}", UNREADABLE)
    else:
        if not number:
            yield ValidationLine(f"{source}: holds no object", UNREADABLE)


def _validate_object(location: str, document: Any) -> Iterator[ValidationLine]:
    if not isinstance(document, dict):
        yield ValidationLine(f"{location}: is no object: write apiVersion, kind, metadata and spec", REFUSED)
        return
    name = f"{location}: {subject(document)}"
    foreign = _foreign_object(document)
    if foreign is not None:
        yield ValidationLine(f"{name} {foreign.text}", foreign.code)
        return
    try:
        validate_object(document)
    except ValidationFailed as failure:
        yield from (ValidationLine(f"{name}: {sentence}", REFUSED) for sentence in advice(document, failure.causes))
    else:
        yield ValidationLine(f"{name} ok")


def _foreign_object(document: dict[str, Any]) -> ValidationLine | None:
    """The line for an object that is not of a holdfast kind; None for holdfast kinds."""
    api_version, kind = document.get("apiVersion"), document.get("kind")
    if isinstance(api_version, str) and isinstance(kind, str) and kind_of(api_version, kind):
        return None
    try:
        find_manifest_kind(document)
    except UsageError as error:
        group = str(api_version or "").rpartition("/")[0]
        if not api_version or not isinstance(kind, str) or any(known.group == group for known in KINDS):
            return ValidationLine(f"is refused: {error}", REFUSED)
        return ValidationLine(f"is not checked: {error}")
    return ValidationLine("is not checked: holdfast checks its own kinds, and the API server this one")
