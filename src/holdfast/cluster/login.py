"""The kubeconfig of a local cluster: commands find the cluster by this file, and authenticate with it."""

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from holdfast.errors import HoldfastError

KUBECONFIG = "kubeconfig"
_NAME = "holdfast"
# Extension of the cluster entry in the kubeconfig: the data folder of the `holdfast up`.
DATA = "holdfast.dev/data"


class KubeconfigNotWritable(HoldfastError):
    """The kubeconfig can't be written, so that no client could connect."""


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
    """Write the kubeconfig into the folder; it is removed after the block."""
    path = folder / KUBECONFIG
    _write(path, text)
    try:
        yield path
    finally:
        with suppress(OSError):
            if path.read_bytes() == text.encode():  # unless another process has replaced the file meanwhile
                path.unlink()


def _write(path: Path, text: str) -> None:
    """Write atomically; from the first byte on, only the owner can read the file."""
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
