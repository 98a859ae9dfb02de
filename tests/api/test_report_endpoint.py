"""The file that tells a sidecar where to report."""

import pytest

from holdfast.api.reports import Endpoint, InvalidEndpointFile, decode_endpoint, encode_endpoint

ENDPOINT = Endpoint(url="https://10.0.0.7:8443", authority="-----BEGIN CERTIFICATE-----\nMII\n")


def test_what_the_leader_writes_a_sidecar_reads() -> None:
    assert decode_endpoint(encode_endpoint(ENDPOINT).encode()) == ENDPOINT


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"\xff", b'{"url": 1, "authority": ""}'])
def test_a_file_that_is_torn_or_empty_is_named(text: bytes) -> None:
    with pytest.raises(InvalidEndpointFile, match=r"reports\.json does not say where to report"):
        decode_endpoint(text)
