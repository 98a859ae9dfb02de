"""Token, endpoint and hash of the CA: what users give, and what the cluster publishes."""

import pytest
from cryptography import x509

from holdfast.api.core.objects import Secret
from holdfast.api.core.pod import ObjectReference
from holdfast.api.meta import ObjectMeta
from holdfast.api.spotinstancevm import KubeadmJoinConfig
from holdfast.machines.join_credentials import ca_cert_hash, cluster_info, given_credentials
from holdfast.machines.joining import CannotJoin
from tests.machines.cluster_info import authority, kubeconfig

TOKEN = "abcdef.0123456789abcdef"
HASH, OTHER_HASH = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"

CA = b"""\
-----BEGIN CERTIFICATE-----
MIIBgTCCASegAwIBAgIUXb8ZKEz6i4QUqDHUvV/8p78KjyowCgYIKoZIzj0EAwIw
FTETMBEGA1UEAwwKa3ViZXJuZXRlczAgFw0yNjExMTgyMDIxMzNaGA8yMTI2MTAy
NTIwMjEzM1owFTETMBEGA1UEAwwKa3ViZXJuZXRlczBZMBMGByqGSM49AgEGCCqG
SM49AwEHA0IABMssR7L5HXYJHS1yBEiGoiBRhNFUVKW7tjoXoswl+qd57A0DY8Um
422U7bwegXdbf3uxkud10La0dEfBekWTDiijUzBRMB0GA1UdDgQWBBQ4YEZTvdCP
d6+/Qb8t1ieH9HCTMzAfBgNVHSMEGDAWgBQ4YEZTvdCPd6+/Qb8t1ieH9HCTMzAP
BgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIQCiKOq5raFEs2SVvIMq
dsNGv5BwnytFEnu6V7yq5/FBTQIgJ8DYvY+fsln0fnCVBqGcUnFj97V05aPhscYY
3VLmP64=
-----END CERTIFICATE-----
"""
# What `openssl x509 -pubkey -noout | openssl pkey -pubin -outform der | sha256sum` says of it.
CA_HASH = "sha256:92a6a7327357f522b64f7760d8c77735a0f47eb73ecf0548c8ded02a7afbf32c"


def secret(**data: str) -> Secret:
    content = {name.replace("_", "-"): value.encode() for name, value in data.items()}
    return Secret(metadata=ObjectMeta(name="join", namespace="ml"), data=content)


def config(*, ca_cert_hash: str | None = None, control_plane_endpoint: str | None = None) -> KubeadmJoinConfig:
    return KubeadmJoinConfig(
        token_secret_ref=ObjectReference(name="join"),
        ca_cert_hash=ca_cert_hash,
        control_plane_endpoint=control_plane_endpoint,
    )


def test_the_hash_is_that_of_the_public_key() -> None:
    assert ca_cert_hash(x509.load_pem_x509_certificate(CA)) == CA_HASH


def test_endpoint_and_hashes_come_from_the_published_kubeconfig() -> None:
    old, new = authority(), x509.load_pem_x509_certificate(CA)

    info = cluster_info({"kubeconfig": kubeconfig(old, new, new), "jws-kubeconfig-abcdef": "a..b"})

    assert info.endpoint == "10.0.0.2:6443"
    assert info.ca_cert_hashes == (ca_cert_hash(old), CA_HASH)


@pytest.mark.parametrize(
    ("server", "endpoint"),
    [
        ("https://10.0.0.2:6443", "10.0.0.2:6443"),
        ("https://api.example.org", "api.example.org:443"),
        ("https://api.example.org:8443/cluster", "api.example.org:8443"),
        ("https://[fd00::2]:6443", "[fd00::2]:6443"),
        ("https://[fd00::2]", "[fd00::2]:443"),
    ],
)
def test_the_endpoint_is_a_host_with_a_port(server: str, endpoint: str) -> None:
    assert cluster_info({"kubeconfig": kubeconfig(authority(), server=server)}).endpoint == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "clusters: []",
        "}{",
        "clusters: [{cluster: {server: 'https://10.0.0.2:6443'}}]",
        "clusters: [{cluster: {server: a, certificate-authority-data: '%%%'}}]",
        "clusters: [{cluster: {server: a, certificate-authority-data: bm8gY2VydGlmaWNhdGU=}}]",
    ],
)
def test_what_is_no_kubeconfig_of_a_cluster_is_said_with_the_remedy(text: str) -> None:
    with pytest.raises(CannotJoin, match="kubeadm init phase bootstrap-token") as refused:
        cluster_info({"kubeconfig": text})

    assert refused.value.reason == "InvalidClusterInfo"


def test_a_config_map_without_kubeconfig_is_one_that_can_not_be_read() -> None:
    with pytest.raises(CannotJoin, match="kube-public/cluster-info"):
        cluster_info({})


def test_the_spec_counts_before_the_secret() -> None:
    given = given_credentials(
        config(ca_cert_hash=OTHER_HASH, control_plane_endpoint="api:6443"),
        secret(token=TOKEN, ca_cert_hash=HASH, control_plane_endpoint="10.0.0.2:6443"),
    )

    assert (given.token, given.ca_cert_hash, given.endpoint) == (TOKEN, OTHER_HASH, "api:6443")


def test_the_secret_may_end_its_values_with_a_new_line_and_leave_all_but_the_token_out() -> None:
    full = given_credentials(
        config(), secret(token=f"{TOKEN}\n", ca_cert_hash=f"{HASH}\n", control_plane_endpoint=" 10.0.0.2:6443\n")
    )
    bare = given_credentials(config(), secret(token=TOKEN))

    assert (full.token, full.ca_cert_hash, full.endpoint) == (TOKEN, HASH, "10.0.0.2:6443")
    assert (bare.token, bare.ca_cert_hash, bare.endpoint) == (TOKEN, "", "")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "has no token"),
        ({"token": "0123456789abcdef"}, "token of Secret ml/join .* is not a token as `kubeadm token create` prints"),
        ({"token": TOKEN.upper()}, "token of Secret ml/join"),
        ({"token": TOKEN, "ca_cert_hash": "a" * 64}, "ca-cert-hash of Secret ml/join"),
        (
            {"token": TOKEN, "control_plane_endpoint": "https://10.0.0.3:6443"},
            "control-plane-endpoint .* host and port",
        ),
        ({"token": TOKEN, "control_plane_endpoint": "10.0.0.3"}, "control-plane-endpoint of Secret ml/join"),
    ],
)
def test_a_wrong_value_is_said_by_its_key_and_not_shown(data: dict[str, str], words: str) -> None:
    with pytest.raises(CannotJoin, match=words) as refused:
        given_credentials(config(), secret(**data))

    assert refused.value.reason == "InvalidToken"
    assert not any(value in str(refused.value) for value in data.values())


def test_a_token_is_not_printed() -> None:
    given = given_credentials(config(), secret(token=TOKEN))

    assert TOKEN not in repr(given)
