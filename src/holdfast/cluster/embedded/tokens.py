"""Tokens of pods: random words that only this process can tell apart, and that end with their pod."""

import hashlib
import secrets
from collections.abc import Callable

from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.cluster.protocol import Identity


class _Issued(Struct, frozen=True):
    pod: Key
    uid: str
    account: str
    audience: str


class Tokens:
    """`uid_of` says which pod has that name now; "" when none has."""

    def __init__(self, uid_of: Callable[[Key], str]) -> None:
        self._uid_of = uid_of
        self._issued: dict[bytes, _Issued] = {}

    def issue(self, pod: Key, uid: str, account: str, audience: str) -> str:
        self._issued = {digest: each for digest, each in self._issued.items() if self._holds(each)}
        token = secrets.token_urlsafe(32)
        self._issued[_digest(token)] = _Issued(pod, uid, account, audience)
        return token

    def review(self, token: str, audience: str) -> Identity | None:
        issued = self._issued.get(_digest(token))
        if issued is None or issued.audience != audience or not self._holds(issued):
            return None
        return Identity(
            username=f"system:serviceaccount:{issued.pod.namespace}:{issued.account}",
            namespace=issued.pod.namespace,
            service_account=issued.account,
            pod_name=issued.pod.name,
            pod_uid=issued.uid,
        )

    def _holds(self, issued: _Issued) -> bool:
        return self._uid_of(issued.pod) == issued.uid


def _digest(token: str) -> bytes:
    """Looked up by it, a token can't be guessed piece by piece from how long that takes."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
