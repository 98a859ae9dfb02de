"""The client that asks the operator for a credential, over real TLS."""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from holdfast.api import reports
from holdfast.api.credentials import ENDPOINT_CONFIG_MAP, PATH, CredentialRefused, CredentialRequest, decode_request
from holdfast.api.reports import Endpoint, encode_endpoint
from holdfast.cluster.resources import CONFIG_MAPS, NAMESPACES
from holdfast.local.apiserver.server import EmbeddedCluster
from holdfast.node.credentials import CredentialClient, CredentialUnavailable
from tests.control_plane.certificates import LOOPBACK, Authority
from tests.node.kubelets import in_pieces

REQUEST = CredentialRequest(namespace="team", backup="nightly", uid="u-1", run=3)
TOKEN = "a-projected-token"


class AnsweringOperator:
    def __init__(self) -> None:
        self.status, self.body = 200, '{"username":"ada","password":"pass"}'
        self.pieces = 1
        self.requests: list[tuple[str, CredentialRequest]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.headers["Authorization"], decode_request(await request.read())))
        return await in_pieces(request, self.status, self.body.encode(), self.pieces)


@pytest.fixture
async def operator(cluster: EmbeddedCluster, tmp_path: Path) -> AsyncIterator[AnsweringOperator]:
    operator, authority = AnsweringOperator(), Authority(tmp_path, datetime.now(UTC))
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    await cluster.create(NAMESPACES, {"metadata": {"name": "holdfast-system"}})
    async with serving(operator, authority) as url:
        await publish(cluster, url, authority.file.read_text())
        yield operator


@asynccontextmanager
async def serving(operator: AnsweringOperator, authority: Authority) -> AsyncIterator[str]:
    pair, context = authority.server("operator"), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    app = web.Application()
    app.router.add_post(PATH, operator.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0, ssl_context=context).start()
        yield f"https://{LOOPBACK}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def publish(cluster: EmbeddedCluster, url: str, authority: str) -> None:
    data = {reports.FILE: encode_endpoint(Endpoint(url=url, authority=authority))}
    body = {"metadata": {"name": ENDPOINT_CONFIG_MAP}, "data": data}
    await cluster.create(CONFIG_MAPS, body, namespace="holdfast-system")


def client(cluster: EmbeddedCluster, tmp_path: Path, namespace: str = "holdfast-system") -> CredentialClient:
    return CredentialClient(cluster, namespace=namespace, token_file=tmp_path / "token")


async def test_the_operator_is_found_by_its_config_map_and_shown_the_projected_token(
    cluster: EmbeddedCluster, operator: AnsweringOperator, tmp_path: Path
) -> None:
    found = await client(cluster, tmp_path).credential(REQUEST)
    assert (found.username, found.password) == ("ada", "pass")
    assert operator.requests == [(f"Bearer {TOKEN}", REQUEST)]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, CredentialRefused),
        (401, CredentialUnavailable),
        (403, CredentialRefused),
        (404, CredentialRefused),
        (409, CredentialRefused),
        (429, CredentialUnavailable),
        (500, CredentialUnavailable),
        (503, CredentialUnavailable),
    ],
)
async def test_a_refusal_is_final_or_passes_and_comes_with_the_operators_sentence(
    cluster: EmbeddedCluster, operator: AnsweringOperator, tmp_path: Path, status: int, error: type[Exception]
) -> None:
    operator.status, operator.body = status, '{"error":"ask your administrator"}'
    with pytest.raises(error, match=f"the operator answers {status}: ask your administrator"):
        await client(cluster, tmp_path).credential(REQUEST)


async def test_an_answer_that_is_no_credential_is_not_shown(
    cluster: EmbeddedCluster, operator: AnsweringOperator, tmp_path: Path
) -> None:
    operator.body = '{"password": 7, "s3cret": true}'
    with pytest.raises(CredentialUnavailable) as raised:
        await client(cluster, tmp_path).credential(REQUEST)
    assert "s3cret" not in str(raised.value)


async def test_an_answer_with_many_certificates_is_read_to_its_end(
    cluster: EmbeddedCluster, operator: AnsweringOperator, tmp_path: Path
) -> None:
    authority = "certificate " * 30_000
    operator.body, operator.pieces = json.dumps({"username": "ada", "password": "pass", "authority": authority}), 5
    assert (await client(cluster, tmp_path).credential(REQUEST)).authority == authority


async def test_a_server_with_another_certificate_gets_no_token(
    cluster: EmbeddedCluster, operator: AnsweringOperator, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", datetime.now(UTC))
    async with serving(operator, other) as url:
        pinned = encode_endpoint(Endpoint(url=url, authority=(tmp_path / "ca.crt").read_text()))
        key = (await cluster.list(CONFIG_MAPS, namespace="holdfast-system")).items[0].metadata.key
        await cluster.patch(CONFIG_MAPS, key, {"data": {reports.FILE: pinned}})
        with pytest.raises(CredentialUnavailable, match="does not answer"):
            await client(cluster, tmp_path).credential(REQUEST)
    assert operator.requests == []


@pytest.mark.parametrize("missing", ["config map", "token"])
async def test_what_is_missing_is_named(
    cluster: EmbeddedCluster, operator: AnsweringOperator, tmp_path: Path, missing: str
) -> None:
    if missing == "token":
        (tmp_path / "token").write_text("")
    namespace = "elsewhere" if missing == "config map" else "holdfast-system"
    with pytest.raises(CredentialUnavailable, match="--operator-namespace" if namespace == "elsewhere" else "no token"):
        await client(cluster, tmp_path, namespace).credential(REQUEST)
    assert operator.requests == []
