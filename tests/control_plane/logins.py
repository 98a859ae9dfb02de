"""Who may talk to the API server, and as whom: kubeconfigs for tests and servers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.control_plane.certificates import Pair, write_secret


def with_token(path: Path, url: str, ca_file: Path, token: str) -> Path:
    return _write(path, url, ca_file, {"token": token})


def with_certificate(path: Path, url: str, ca_file: Path, pair: Pair) -> Path:
    return _write(path, url, ca_file, {"client-certificate": str(pair.certificate), "client-key": str(pair.key)})


def _write(path: Path, url: str, ca_file: Path, login: Mapping[str, str]) -> Path:
    content: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "tests",
        "clusters": [{"name": "tests", "cluster": {"server": url, "certificate-authority": str(ca_file)}}],
        "users": [{"name": "tests", "user": dict(login)}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
    }
    return write_secret(path, yaml.safe_dump(content))
