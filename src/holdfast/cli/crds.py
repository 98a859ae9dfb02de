"""`holdfast crds`: the CustomResourceDefinitions of all kinds, as YAML."""

from pathlib import Path
from typing import Annotated

import typer
import yaml

from holdfast.api.kinds import KINDS
from holdfast.api.schema.crd import crd_manifest


def crds(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write one file for each kind to.", file_okay=False)
    ] = None,
) -> None:
    """Print the CustomResourceDefinitions: holdfast crds | kubectl apply --server-side -f -"""
    if output is None:
        typer.echo("---\n".join(manifests().values()), nl=False)
        return
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
