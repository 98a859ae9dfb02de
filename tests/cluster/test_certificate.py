"""A server's own certificate: good for one address, for ever, and for nobody else."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from cryptography import x509

from holdfast.cluster.certificate import ServerIdentity, self_signed_identity

LOCAL = "127.0.0.1"


@asynccontextmanager
async def listening(identity: ServerIdentity) -> AsyncIterator[int]:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, LOCAL, 0, ssl=identity.context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def heard(port: int, trusted: bytes, name: str = LOCAL) -> bytes:
    context = ssl.create_default_context(cadata=trusted.decode())
    reader, writer = await asyncio.open_connection(LOCAL, port, ssl=context, server_hostname=name)
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_a_client_with_the_certificate_trusts_the_server() -> None:
    identity = self_signed_identity(LOCAL)
    async with listening(identity) as port:
        assert await heard(port, identity.authority) == b"hello"


async def test_a_client_with_another_certificate_does_not_trust_the_server() -> None:
    async with listening(self_signed_identity(LOCAL)) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await heard(port, self_signed_identity(LOCAL).authority)


async def test_it_is_good_for_its_own_address_only() -> None:
    identity = self_signed_identity("10.0.0.7")
    async with listening(identity) as port:
        with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
            await heard(port, identity.authority)
        assert await heard(port, identity.authority, "10.0.0.7") == b"hello"


def test_no_clock_makes_it_invalid() -> None:
    certificate = x509.load_pem_x509_certificate(self_signed_identity("fd00::7").authority)
    assert certificate.not_valid_before_utc.year == 1970
    assert certificate.not_valid_after_utc.year == 9999


def test_the_key_is_not_handed_out() -> None:
    assert b"PRIVATE" not in self_signed_identity(LOCAL).authority
