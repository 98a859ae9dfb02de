"""The kubeconfig by which commands find the cluster of this machine, and prove that they may use it."""

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from holdfast.errors import HoldfastError

KUBECONFIG = "kubeconfig"
_NAME = "holdfast"
# An entry of the kubeconfig's cluster: the folder of the `holdfast up` that it is.
DATA = "holdfast.dev/data"


class KubeconfigNotWritable(HoldfastError):
    """Nobody could connect: the kubeconfig can't be written."""


def kubeconfig_text(url: str, *, authority: bytes, token: str, data: Path | None = None) -> str:
    cluster: dict[str, object] = {
        "server": url,
        "certificate-authority-data": base64.b64encode(authority).decode(),
    }
    if data is not None:
        cluster["extensions"] = [{"name": DATA, "extension": {"folder": str(data.absolute())}}]
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": _NAME,
        "clusters": [{"name": _NAME, "cluster": cluster}],
        "users": [{"name": _NAME, "user": {"token": token}}],
        "contexts": [{"name": _NAME, "context": {"cluster": _NAME, "user": _NAME, "namespace": "default"}}],
    }
    return yaml.safe_dump(content, sort_keys=False)


@contextmanager
def kubeconfig_file(folder: Path, text: str) -> Iterator[Path]:
    """The kubeconfig of that folder, inside the block."""
    path = folder / KUBECONFIG
    _write(path, text)
    try:
        yield path
    finally:
        with suppress(OSError):
            if path.read_bytes() == text.encode():  # unless somebody else has put their own there meanwhile
                path.unlink()


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and readable by its owner alone from its first byte on."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        draft.replace(path)
    except OSError as error:
        reason = error.strerror or error
        raise KubeconfigNotWritable(
            f"cannot write {path}: {reason}; is its folder there, and is it writable?"
        ) from error
