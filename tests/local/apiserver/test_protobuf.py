"""Kubernetes' protobuf encoding: what is read of it, and that garbage is the client's fault."""

import base64
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.errors import BadRequest
from holdfast.local.apiserver.http.protobuf import decode
from holdfast.local.apiserver.http.responses import Unsupported

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def entries(number: int, values: Mapping[str, str] | Mapping[str, bytes]) -> bytes:
    return b"".join(field(number, field(1, key) + field(2, value)) for key, value in values.items())


def envelope(kind: str, raw: bytes, *, api_version: str = "v1") -> bytes:
    return b"k8s\x00" + field(1, field(1, api_version) + field(2, kind)) + field(2, raw) + field(3, "") + field(4, "")


def metadata(name: str, **maps: Mapping[str, str]) -> bytes:
    numbers = {"labels": 11, "annotations": 12}
    empty = field(2, "") + field(3, "") + field(4, "") + field(7, 0) + field(8, b"")
    return field(1, field(1, name) + empty + b"".join(entries(numbers[key], each) for key, each in maps.items()))


def test_what_go_writes_for_fields_that_are_not_set_is_left_out() -> None:
    account = metadata("worker") + field(2, field(3, "pull")) + field(3, field(1, "pull")) + field(4, 0)
    assert decode(envelope("ServiceAccount", account)) == {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "worker"},
        "secrets": [{"name": "pull"}],
        "imagePullSecrets": [{"name": "pull"}],
        "automountServiceAccountToken": False,
    }


def test_metadata_is_read_whole() -> None:
    owner = field(1, "Job") + field(3, "a") + field(4, "u-1") + field(5, "batch/v1") + field(6, 1) + field(7, 0)
    times = field(8, field(1, 1_767_225_600) + field(2, 5)) + field(10, -1)
    body = field(1, field(1, "a") + field(3, "team") + field(5, "u-2") + times + field(13, owner) + field(14, "x/y"))
    assert decode(envelope("Namespace", body + field(2, field(1, "kubernetes"))))["metadata"] == {
        "name": "a",
        "namespace": "team",
        "uid": "u-2",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": -1,
        "ownerReferences": [
            {
                "kind": "Job",
                "name": "a",
                "uid": "u-1",
                "apiVersion": "batch/v1",
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
        "finalizers": ["x/y"],
    }


def test_fields_of_later_versions_are_skipped() -> None:
    later = field(90, 7) + field(91, "text") + varint(92 << 3 | 1) + bytes(8) + varint(93 << 3 | 5) + bytes(4)
    assert decode(envelope("Namespace", later + metadata("a")))["metadata"] == {"name": "a"}


@given(st.dictionaries(TEXTS, TEXTS), st.dictionaries(TEXTS, st.binary(max_size=40)), st.dictionaries(TEXTS, TEXTS))
def test_maps_of_text_and_of_bytes_are_read_back(
    data: dict[str, str], binary: dict[str, bytes], labels: dict[str, str]
) -> None:
    written = metadata("a", labels=labels) + entries(2, data) + entries(3, binary)
    read = decode(envelope("ConfigMap", written))
    encoded = {key: base64.b64encode(value).decode() for key, value in binary.items()}
    assert (read.get("data", {}), read.get("binaryData", {})) == (data, encoded)
    assert read["metadata"].get("labels", {}) == labels


WHOLE = envelope("Secret", metadata("keys", labels={"a": "b"}) + entries(2, {"p": b"\x00\xff"}) + field(5, 1))


@given(st.integers(0, len(WHOLE) - 1))
def test_a_body_that_is_cut_short_is_refused_or_a_part_of_the_whole(length: int) -> None:
    try:
        read: Any = decode(WHOLE[:length])
    except (BadRequest, Unsupported):
        return
    # Cut between two fields of the envelope.
    assert (read.get("metadata"), read.get("data")) in [
        (None, None),
        ({"name": "keys", "labels": {"a": "b"}}, {"p": "AP8="}),
    ]


@given(st.binary(max_size=60), st.sampled_from(["Namespace", "ConfigMap", "Secret", "ServiceAccount", "Pod"]))
def test_garbage_is_the_client_s_fault(garbage: bytes, kind: str) -> None:
    for body in (garbage, b"k8s\x00" + garbage, envelope(kind, garbage)):
        with suppress(BadRequest, Unsupported):
            assert decode(body)["kind"] == kind


@pytest.mark.parametrize(
    "raw",
    [
        b"\x0a\x02\x0a\xff",
        b"\x0a" + b"\xff" * 10 + b"\x01",
        b"\x08\x01",
        b"\x0b",
        field(1, field(8, field(1, 2**62))),
        field(1, field(1, b"\xff")),
        field(1, field(7, b"")),
    ],
    ids=["cut short", "endless number", "number for message", "group", "time", "not UTF-8", "bytes for number"],
)
def test_what_can_not_be_read_is_a_bad_request(raw: bytes) -> None:
    with pytest.raises(BadRequest, match="is not Kubernetes' protobuf"):
        decode(envelope("Namespace", raw))


def test_a_kind_that_is_not_read_is_named_with_what_to_do() -> None:
    with pytest.raises(Unsupported, match=r"apps/v1 Deployment is not read as protobuf here: .* kubectl apply -f -"):
        decode(envelope("Deployment", b"", api_version="apps/v1"))
