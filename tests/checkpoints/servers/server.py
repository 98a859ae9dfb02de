"""Object stores that run here for the tests, and how a container would be told to reach them."""

import base64
import hashlib
import hmac
import html
import json
import re
import shutil
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import NamedTuple

from tests.checkpoints import provision
from tests.checkpoints.servers.gcs import GcsFront
from tests.control_plane.component import Component
from tests.control_plane.ports import free_ports

AZURE_ACCOUNT = "devstoreaccount1"
# azurite's only account has this key everywhere; it is no secret.
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
BUCKET = "checkpoints"


class Server(NamedTuple):
    """A store with a bucket in it. `environ` is what a container is given to reach it, `port` where it listens."""

    scheme: str
    port: int
    environ: Mapping[str, str]

    def address(self, prefix: str, bucket: str = BUCKET) -> str:
        return f"{self.scheme}://{bucket}/{prefix}"


@contextmanager
def s3(folder: Path) -> Iterator[Server]:
    """moto's server, which lets anybody do anything."""
    with _moto(folder, free=1_000_000_000) as port:
        yield Server("s3", port, s3_environ(port))


@contextmanager
def s3_signed(folder: Path) -> Iterator[tuple[Server, Server]]:
    """The same, wanting to know who asks: as a stranger sees it, and as somebody who may only read."""
    with _moto(folder, free=4) as port:
        asked = f"http://127.0.0.1:{port}/"
        # The server tells its services apart by what a request is signed for.
        iam = {"Authorization": "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/iam/aws4_request, Signature=any"}
        allowed = {"Effect": "Allow", "Action": ["s3:Get*", "s3:List*", "s3:Head*"], "Resource": "*"}
        policy = urllib.parse.quote(json.dumps({"Version": "2012-10-17", "Statement": [allowed]}))
        _ask("POST", asked, b"Action=CreateUser&UserName=reader", iam)
        _ask(
            "POST", asked, f"Action=PutUserPolicy&UserName=reader&PolicyName=read&PolicyDocument={policy}".encode(), iam
        )
        made = _ask("POST", asked, b"Action=CreateAccessKey&UserName=reader", iam).decode()
        key, secret = (re.findall(rf"<{name}>(.*?)</{name}>", made)[0] for name in ("AccessKeyId", "SecretAccessKey"))
        stranger = s3_environ(port)
        reader = {**stranger, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": html.unescape(secret)}
        yield Server("s3", port, stranger), Server("s3", port, reader)


@contextmanager
def _moto(folder: Path, *, free: int) -> Iterator[int]:
    """Its port. So many requests may be anybody's; the first makes the bucket."""
    (port,) = free_ports(1)
    argv = [_program("env"), f"INITIAL_NO_AUTH_ACTION_COUNT={free}", sys.executable, "-m", "moto.server"]
    command = [*argv, "-H", "127.0.0.1", "-p", str(port)]
    with _running("moto", command, folder, f"http://127.0.0.1:{port}/moto-api/data.json"):
        _ask("PUT", f"http://127.0.0.1:{port}/{BUCKET}")
        yield port


def s3_environ(port: int) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }


@contextmanager
def azure(folder: Path) -> Iterator[Server]:
    (port,) = free_ports(1)
    flags = ["--inMemoryPersistence", "--disableTelemetry", "--silent", "--skipApiVersionCheck"]
    command = [_program("node"), str(provision.azurite()), "--blobHost", "127.0.0.1", "--blobPort", str(port), *flags]
    with _running("azurite", command, folder, f"http://127.0.0.1:{port}/"):
        _make_container(port)
        yield Server("az", port, azure_environ(port))


def azure_environ(port: int) -> dict[str, str]:
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
        "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}",
    }


@contextmanager
def gcs(folder: Path) -> Iterator[Server]:
    """fake-gcs-server, behind a front that speaks what it lacks of the XML API."""
    (port,) = free_ports(1)
    flags = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    command = [str(provision.fake_gcs()), *flags, "-public-host", f"127.0.0.1:{port}"]
    url = f"http://127.0.0.1:{port}"
    with _running("fake-gcs-server", command, folder, f"{url}/_internal/healthcheck"), ExitStack() as stack:
        _ask("POST", f"{url}/storage/v1/b?project=p", json.dumps({"name": BUCKET}).encode())
        front = stack.enter_context(GcsFront(port).running())
        yield Server("gs", front.port, gcs_environ(folder, front.port))


def gcs_environ(folder: Path, port: int) -> dict[str, str]:
    account = folder / f"service-account-{port}.json"
    facts = {"gcs_base_url": f"http://127.0.0.1:{port}", "disable_oauth": True, "client_email": "", "private_key": ""}
    account.write_text(json.dumps({**facts, "private_key_id": ""}))
    return {"GOOGLE_SERVICE_ACCOUNT": str(account)}


@contextmanager
def _running(name: str, command: list[str], folder: Path, url: str) -> Iterator[None]:
    server = Component(name, command, log=folder / f"{name}.log", ready=lambda: _answers(url))
    server.start()
    try:
        yield
    finally:
        server.stop()


def _program(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not on the PATH"
    return found


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return False


def _ask(method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> bytes:
    request = urllib.request.Request(url, data=body, method=method, headers=dict(headers or {}))
    with urllib.request.urlopen(request, timeout=30) as answer:
        content: bytes = answer.read()
    return content


def _make_container(port: int) -> None:
    """Signed by hand, with the account's shared key: obstore can't make one."""
    named = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in named.items())]
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{BUCKET}\nrestype:container"
    text = "\n".join((*lines, resource)).encode()
    signature = base64.b64encode(hmac.new(base64.b64decode(AZURE_KEY), text, hashlib.sha256).digest()).decode()
    headers = {**named, "Authorization": f"SharedKey {AZURE_ACCOUNT}:{signature}"}
    _ask("PUT", f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}/{BUCKET}?restype=container", headers=headers)


SERVERS = {"s3": s3, "azure": azure, "gcs": gcs}
