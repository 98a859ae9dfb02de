"""Debian's docker-registry with a certificate of the tests' own authority: open, with passwords, or with tokens."""

import base64
import json
import shutil
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from holdfast.api.credentials import RegistryCredential
from holdfast.checkpoints.images.reference import RegistryAddress, registry_address
from holdfast.checkpoints.images.registry import RegistryClient
from tests import leaks
from tests.checkpoints import provision
from tests.control_plane.certificates import LOOPBACK, Authority, Pair
from tests.control_plane.component import Component
from tests.control_plane.ports import free_ports
from tests.control_plane.probe import answers

USER, PASSWORD = "ada", leaks.PASSWORD
# bcrypt, the one form that the registry reads, and of this password.
HTPASSWD = "ada:$2y$05$kkk4LGAaW8jHMAfp1CpI1u9q8mfLqN2M0Kg31f4Q6leNwGG.mfZuC\n"
# docker-registry accepts a token for so long after its end.
LEEWAY_S = 60


class RunningRegistry(NamedTuple):
    """A registry that runs. `data` is where it has its blobs."""

    address: RegistryAddress
    ca_pem: str
    data: Path
    component: Component

    def credential(self, password: str = PASSWORD) -> RegistryCredential:
        return RegistryCredential(username=USER if password else "", password=password, authority=self.ca_pem)

    def client(self, password: str = PASSWORD, *, for_s: float = 60.0) -> RegistryClient:
        return RegistryClient(self.address, self.credential(password), deadline_s=time.monotonic() + for_s)

    def unfinished_uploads(self, repository: str) -> list[str]:
        return [path.name for path in self.data.glob(f"docker/registry/v2/repositories/{repository}/_uploads/*")]


@contextmanager
def running_registry(
    folder: Path,
    auth: dict[str, Any] | None = None,
    *,
    delete: bool = True,
    address: str = LOOPBACK,
    authority: Authority | None = None,
) -> Iterator[RunningRegistry]:
    """On the loopback address and with an authority of its own, unless others are given."""
    program = shutil.which(provision.REGISTRY)
    if program is None:
        pytest.fail(f"{provision.REGISTRY} is not installed: run `make stores`", pytrace=False)
    (port,) = free_ports(1)
    authority = authority or Authority(folder, datetime.now(UTC))
    pair = authority.server(f"registry-{port}", address)
    trust = ssl.create_default_context(cafile=authority.file)
    data = folder / "data"
    config = {
        "version": "0.1",
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(data)}, "delete": {"enabled": delete}},
        "http": {
            "addr": f"{address}:{port}",
            "tls": {"certificate": str(pair.certificate), "key": str(pair.key)},
        },
        **({"auth": auth} if auth else {}),
    }
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML, too
    component = Component(
        "docker-registry",
        [program, "serve", str(folder / "config.yml")],
        log=folder / "registry.log",
        ready=lambda: answers(port, "/", host=address, trust=trust),
    )
    component.start()
    try:
        yield RunningRegistry(registry_address(f"{address}:{port}"), authority.file.read_text(), data, component)
    finally:
        component.stop()


def password_auth(folder: Path) -> dict[str, Any]:
    (folder / "htpasswd").write_text(HTPASSWD)
    return {"htpasswd": {"realm": "tests", "path": str(folder / "htpasswd")}}


class TokenService:
    """Gives a token to who knows the password. lifetime_s: until the registry refuses it; told_s: what it says."""

    def __init__(self, signer: Pair, tls: Pair, address: str = LOOPBACK) -> None:
        self._address = address
        self.lifetime_s = 3600.0
        self.told_s: float | None = 3600.0
        self.scopes: list[list[str]] = []
        self._signer = signer
        self._key = serialization.load_pem_private_key(signer.key.read_bytes(), None)
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.answer(self)

            def do_POST(self) -> None:
                self.send_error(405)  # containerd asks by OAuth first, and then as everybody

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer((address, 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @contextmanager
    def running(self) -> Iterator[dict[str, Any]]:
        """How the registry is told of the service."""
        self._thread.start()
        try:
            yield {
                "token": {
                    "realm": f"https://{self._address}:{self._server.server_port}/token",
                    "service": "tests",
                    "issuer": "tests",
                    "rootcertbundle": str(self._signer.certificate),
                }
            }
        finally:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(request.path).query)
        expected = f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
        if request.headers.get("Authorization") != expected:
            request.send_error(401)
            return
        self.scopes.append(query.get("scope", []))
        reply: dict[str, Any] = {"token": self._token(query.get("scope", []))}
        if self.told_s is not None:
            reply["expires_in"] = int(self.told_s)
        content = json.dumps(reply).encode()
        request.send_response(200)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def _token(self, scopes: list[str]) -> str:
        now = time.time()
        der = "".join(self._signer.certificate.read_text().splitlines()[1:-1])
        access = [
            {"type": kind, "name": name, "actions": actions.split(",")}
            for kind, name, actions in (scope.split(":") for scope in scopes)
        ]
        claims = {
            "iss": "tests",
            "sub": USER,
            "aud": "tests",
            "exp": int(now - LEEWAY_S + self.lifetime_s),
            "nbf": int(now - 2 * LEEWAY_S),
            "iat": int(now),
            "jti": str(len(self.scopes)),
            "access": access,
        }
        signed = f"{_encoded({'typ': 'JWT', 'alg': 'ES256', 'x5c': [der]})}.{_encoded(claims)}"
        assert isinstance(self._key, ec.EllipticCurvePrivateKey)
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_base64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _encoded(fields: dict[str, Any]) -> str:
    return _base64(json.dumps(fields).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
