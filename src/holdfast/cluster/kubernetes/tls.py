"""TLS contexts for the API server, renewed when the CA or the client certificate changes."""

import ssl
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from holdfast.cluster.errors import Misconfigured
from holdfast.cluster.kubernetes.credentials import Certificate
from holdfast.cluster.kubernetes.kubeconfig import Server
from holdfast.cluster.kubernetes.material import RotatingFile

log = structlog.get_logger(__name__)


class Tls:
    """One context while nothing changes: the pool reuses a connection only with the same context."""

    def __init__(self, server: Server) -> None:
        self._authority = RotatingFile(server.authority) if server.authority else None
        self._insecure = server.insecure
        self._inputs: tuple[bytes | None, Certificate | None] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self, certificate: Certificate | None, now_s: float) -> ssl.SSLContext:
        inputs = (self._authority.read(now_s) if self._authority else None, certificate)
        if self._context is None or inputs != self._inputs:
            self._context = self._new_context(*inputs)
            self._inputs = inputs
        return self._context

    def renew(self, now_s: float) -> None:
        """Check the CA file now, after a rejected or untrusted connection."""
        if self._authority:
            self._authority.read(now_s, recheck=True)

    def _new_context(self, authority: bytes | None, certificate: Certificate | None) -> ssl.SSLContext:
        try:
            return make_context(authority, insecure=self._insecure, certificate=certificate)
        except Misconfigured as error:
            if self._context is None:
                raise
            # Certificate and key are two files: between the two writes they don't match.
            log.warning("new certificates unusable, going on with the old", error=str(error))
            return self._context


def make_context(
    authority: bytes | None, *, insecure: bool = False, certificate: Certificate | None = None
) -> ssl.SSLContext:
    """A client context; without `authority`, the CAs of the system are trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # Newer Pythons reject CAs without a key identifier by default; clusters have such CAs, and kubectl accepts them.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif authority is None:
        context.load_default_certs()
    else:
        _trust(context, authority)
    if certificate:
        _present(context, certificate)
    return context


def _trust(context: ssl.SSLContext, authority: bytes) -> None:
    try:
        context.load_verify_locations(cadata=authority.decode("ascii", errors="ignore"))
    except (ssl.SSLError, ValueError):
        raise Misconfigured("the certificate-authority holds no certificate in PEM") from None


def _present(context: ssl.SSLContext, certificate: Certificate) -> None:
    """The ssl module reads keys only from files; the files exist for one call, in a folder private to this user."""
    with TemporaryDirectory(prefix="holdfast-") as folder:
        chain, key = Path(folder, "chain.pem"), Path(folder, "key.pem")
        chain.write_bytes(certificate.chain)
        key.write_bytes(certificate.key)
        try:
            context.load_cert_chain(chain, key, password=_refuse_password)
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", "") or "not PEM"
            raise Misconfigured(f"the client-certificate and client-key can't be used: {reason}") from None


def _refuse_password() -> str:
    """Called only for an encrypted key; without this callback, OpenSSL would prompt on the terminal and block."""
    raise Misconfigured("the client-key is encrypted: give one without a passphrase")
