"""Certificates of both sides: as files, replaced, broken."""

import ssl
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from holdfast.cluster.errors import Misconfigured
from holdfast.cluster.kubernetes.credentials import Certificate
from holdfast.cluster.kubernetes.kubeconfig import Server
from holdfast.cluster.kubernetes.material import RECHECK_S, PemSource
from holdfast.cluster.kubernetes.tls import Tls, make_context
from tests.control_plane.certificates import Authority, Pair


def certificate(pair: Pair) -> Certificate:
    return Certificate(chain=pair.certificate.read_bytes(), key=pair.key.read_bytes())


def trusting(path: Path) -> Tls:
    return Tls(Server(url="https://api", authority=PemSource(what="certificate-authority", path=path)))


def test_one_context_serves_while_nothing_changes(authority: Authority) -> None:
    tls = trusting(authority.file)
    mine = certificate(authority.user("me"))
    assert tls.context(mine, 0.0) is tls.context(Certificate(chain=mine.chain, key=mine.key), 10 * RECHECK_S)


def test_a_new_certificate_makes_a_new_context(authority: Authority) -> None:
    tls = trusting(authority.file)
    first = tls.context(certificate(authority.user("me")), 0.0)
    assert tls.context(certificate(authority.user("me")), 0.0) is not first


def test_a_new_authority_makes_a_new_context(authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "ca.crt"
    path.write_bytes(authority.file.read_bytes())
    tls = trusting(path)
    first = tls.context(None, 0.0)
    path.write_bytes(authority.user("other").certificate.read_bytes())
    assert tls.context(None, 1.0) is first
    tls.renew(1.0)
    assert tls.context(None, 1.0) is not first


def test_a_certificate_whose_key_is_yet_to_be_replaced_is_waited_for(authority: Authority) -> None:
    tls = trusting(authority.file)
    old, new = certificate(authority.user("me", valid=timedelta(hours=1))), certificate(authority.user("me"))
    context = tls.context(old, 0.0)
    half = Certificate(chain=new.chain, key=old.key)
    assert tls.context(half, 1.0) is context
    assert tls.context(new, 2.0) is not context


def test_a_certificate_that_never_fitted_its_key_is_refused(authority: Authority) -> None:
    mixed = Certificate(chain=authority.user("me").certificate.read_bytes(), key=authority.user("you").key.read_bytes())
    with pytest.raises(Misconfigured, match="client-certificate and client-key can't be used: KEY_VALUES_MISMATCH"):
        make_context(None, certificate=mixed)


def test_what_is_no_certificate_is_refused_and_not_shown(authority: Authority) -> None:
    with pytest.raises(Misconfigured, match="client-certificate and client-key") as caught:
        make_context(None, certificate=Certificate(chain=b"s3cret", key=b"s3cret"))
    assert "s3cret" not in str(caught.value)
    for authority_data in (b"s3cret", b"", b"\xff\xfe"):
        with pytest.raises(Misconfigured, match="certificate-authority holds no certificate"):
            make_context(authority_data)


def test_an_encrypted_key_is_refused_without_asking_anyone(authority: Authority) -> None:
    pair = authority.user("me")
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"hunter2"),
    )
    with pytest.raises(Misconfigured, match="encrypted: give one without a passphrase"):
        make_context(None, certificate=Certificate(chain=pair.certificate.read_bytes(), key=locked))


def test_no_key_is_left_on_the_disk(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    make_context(None, certificate=certificate(authority.user("me")))
    assert set(tmp_path.iterdir()) == before


def test_comments_in_a_bundle_of_authorities_are_passed_over(authority: Authority) -> None:
    context = make_context("# Zertifikat für den Cluster\n".encode() + authority.file.read_bytes())
    assert context.cert_store_stats()["x509_ca"] == 1


@pytest.mark.parametrize("insecure", [False, True])
def test_tls_older_than_1_2_is_never_spoken(insecure: bool) -> None:
    assert make_context(None, insecure=insecure).minimum_version is ssl.TLSVersion.TLSv1_2
