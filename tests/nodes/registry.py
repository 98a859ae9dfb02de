"""Registries beside a lab, with certificates of the lab's authority: its nodes trust them, and need their passwords."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from holdfast.checkpoints.images.image import BytesBlob, Descriptor, file_blob, sha256_digest
from holdfast.checkpoints.images.registry import RegistryClient
from tests.checkpoints.images.registries import (
    PASSWORD,
    USER,
    RunningRegistry,
    TokenService,
    password_auth,
    running_registry,
)
from tests.nodes.image import CONFIG, LAYER, MANIFEST
from tests.nodes.lab import Lab
from tests.nodes.store import BLOBS
from tests.operator.user import kubectl

SECRET = "registry"


class LabRegistry(NamedTuple):
    """A registry that nodes, operator and agents reach by the same name."""

    running: RunningRegistry

    @property
    def host(self) -> str:
        return self.running.address.host

    def client(self) -> RegistryClient:
        return self.running.client(for_s=120.0)

    async def provide_secret(self, lab: Lab, namespace: str, name: str = SECRET) -> str:
        """The credential as users keep it: for kubelets, and with the certificate's authority for holdfast."""
        auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        config = json.dumps({"auths": {self.host: {"auth": auth}}})
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name},
            "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": config, "ca.crt": self.running.ca_pem},
        }
        await kubectl(lab.plane, "apply", "-n", namespace, "-f", "-", input=json.dumps(secret))
        return name


@contextmanager
def registry_with_passwords(lab: Lab) -> Iterator[LabRegistry]:
    folder = lab.folder / "registry-passwords"
    folder.mkdir()
    with running_registry(
        folder, password_auth(folder), address=lab.addresses.host, authority=lab.authority
    ) as running:
        yield _trusted(lab, running)


@contextmanager
def registry_with_tokens(lab: Lab) -> Iterator[LabRegistry]:
    folder = lab.folder / "registry-tokens"
    folder.mkdir()
    address = lab.addresses.host
    service = TokenService(lab.authority.user("signer"), lab.authority.server("tokens", address), address)
    with (
        service.running() as auth,
        running_registry(folder, auth, address=address, authority=lab.authority) as running,
    ):
        yield _trusted(lab, running)


def _trusted(lab: Lab, running: RunningRegistry) -> LabRegistry:
    """As an administrator of the nodes would have it."""
    host = running.address.host
    folder = lab.registries / host
    folder.mkdir(parents=True)
    lines = (f'server = "https://{host}"', f'[host."https://{host}"]', f'ca = "{lab.authority.file}"')
    (folder / "hosts.toml").write_text("".join(f"{line}\n" for line in lines))
    lab.guests.append(running.component)
    return LabRegistry(running)


async def push_python(lab: Lab, registry: LabRegistry, repository: str, environment: dict[str, str]) -> str:
    """An image of the layer that every node has, and that no node knows by this name. Returns it by its digest."""
    python = lab.store.python
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": [f"{key}={value}" for key, value in environment.items()]},
            "rootfs": {"type": "layers", "diff_ids": [python.digest]},
        }
    )
    layer = lab.store.folder / BLOBS / python.digest.removeprefix("sha256:")
    async with registry.client() as client:
        await client.push_blob(repository, file_blob(layer), python.digest)
        await client.push_blob(repository, BytesBlob(config))
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": _described(CONFIG, sha256_digest(config), len(config)),
                "layers": [_described(LAYER, python.digest, python.size)],
            }
        )
        await client.put_manifest(repository, manifest, "1")
    return f"{registry.host}/{repository}@{sha256_digest(manifest)}"


def _described(media_type: str, digest: str, size: int) -> dict[str, Any]:
    blob = Descriptor(media_type=media_type, digest=digest, size=size)
    return {"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size}


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True).encode()
