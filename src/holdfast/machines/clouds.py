"""Providers by project and credential. A credential stays in memory from the launch of a machine to its end.

A namespace's deletion takes the Secret away before the finalizers of its machines have run.
"""

import hashlib
from collections.abc import Callable, Collection
from typing import Protocol

from msgspec import Struct

from holdfast.api.core.pod import ObjectReference
from holdfast.api.meta import Key
from holdfast.errors import HoldfastError
from holdfast.providers.errors import CloudUnauthorized
from holdfast.providers.protocol import Provider
from holdfast.runtime.secrets import SecretReader, SecretUnavailable

SECRET_KEY = "credentials.json"  # noqa: S105  # the name of a key
FIELD = "gcpCredentialsSecretRef"
# A credential that the cloud does not accept is read again so often: somebody may have mended it.
REREAD_S = 30.0


class Account(Struct, frozen=True):
    """A project with the credential for it; without a Secret, the operator's own cloud identity."""

    project: str
    secret: Key | None

    def __str__(self) -> str:
        return f"project {self.project} with " + (f"Secret {self.secret}" if self.secret else "the operator's identity")


class Cloud(Struct, frozen=True):
    account: Account
    provider: Provider


class CloudUnavailable(HoldfastError):
    """There is no credential to ask the cloud with; the text says what would change that."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Connect(Protocol):
    """Makes the provider of a project; without a credential, with the operator's own identity.

    Raises `CloudUnauthorized` for a credential that can't be one.
    """

    def __call__(self, project: str, credential: bytes | None, /) -> Provider: ...


class CloudSource(Protocol):
    """Where a controller finds the cloud of a machine."""

    async def open(
        self, namespace: str, project: str, reference: ObjectReference | None, *, fresh: bool = False
    ) -> Cloud:
        """The cloud as machines of this namespace may use it. Raises `CloudUnavailable` or a `ClusterError`.

        fresh: the Secret has to be there now; otherwise it is enough to have been allowed to read it once.
        """
        ...

    def known(self, account: Account) -> Provider | None:
        """Without asking anybody."""
        ...

    def rejected(self, account: Account) -> None:
        """The cloud has not accepted the credential."""
        ...

    async def forget(self, account: Account) -> None:
        """No machine is made with it any more."""
        ...

    async def close(self) -> None: ...


class OneCloud:
    """The same for all projects and credentials, as on one machine."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def open(
        self, namespace: str, project: str, reference: ObjectReference | None, *, fresh: bool = False
    ) -> Cloud:
        return Cloud(account_of(namespace, project, reference), self._provider)

    def known(self, account: Account) -> Provider | None:
        return self._provider

    def rejected(self, account: Account) -> None:
        return

    async def forget(self, account: Account) -> None:
        return

    async def close(self) -> None:
        await self._provider.close()


class _Entry(Struct, frozen=True):
    provider: Provider
    digest: bytes
    read_at: float


class Clouds:
    """Reads credentials from Secrets.

    own_identity_namespaces: whose machines may be made with the operator's own cloud identity.
    """

    def __init__(
        self,
        secrets: SecretReader,
        connect: Connect,
        *,
        clock: Callable[[], float],
        own_identity_namespaces: Collection[str] = (),
    ) -> None:
        self._secrets = secrets
        self._connect = connect
        self._clock = clock
        self._own_identity_namespaces = own_identity_namespaces
        self._entries: dict[Account, _Entry] = {}
        self._granted: set[tuple[str, Account]] = set()
        self._rejected: set[Account] = set()
        self._retired: list[Provider] = []

    async def open(
        self, namespace: str, project: str, reference: ObjectReference | None, *, fresh: bool = False
    ) -> Cloud:
        account = account_of(namespace, project, reference)
        known = self._entries.get(account)
        is_granted = (namespace, account) in self._granted
        if known is not None and is_granted and not fresh and not self._is_to_be_read_again(account, known):
            return Cloud(account, known.provider)
        try:
            content = await self._content(namespace, account, reference)
        except CloudUnavailable:
            if known is not None and is_granted and not fresh:
                return Cloud(account, known.provider)
            raise
        cloud = Cloud(account, self._provider(account, content))
        self._granted.add((namespace, account))
        return cloud

    def known(self, account: Account) -> Provider | None:
        entry = self._entries.get(account)
        return entry.provider if entry is not None else None

    def rejected(self, account: Account) -> None:
        self._rejected.add(account)

    async def forget(self, account: Account) -> None:
        entry = self._entries.pop(account, None)
        self._granted = {each for each in self._granted if each[1] != account}
        self._rejected.discard(account)
        if entry is not None:
            await entry.provider.close()

    async def close(self) -> None:
        for provider in (*(entry.provider for entry in self._entries.values()), *self._retired):
            await provider.close()
        self._entries.clear()
        self._retired.clear()

    def _is_to_be_read_again(self, account: Account, entry: _Entry) -> bool:
        return account in self._rejected and self._clock() - entry.read_at >= REREAD_S

    async def _content(self, namespace: str, account: Account, reference: ObjectReference | None) -> bytes | None:
        if reference is None:
            if namespace in self._own_identity_namespaces:
                return None
            raise CloudUnavailable(
                "CredentialMissing",
                f"no credential for project {account.project}: name a Secret in {FIELD}, or have an administrator add "
                f"{namespace} to the operator's option --own-cloud-identity",
            )
        try:
            secret = await self._secrets.read(reference, namespace, field=FIELD)
        except SecretUnavailable as error:
            raise CloudUnavailable(error.reason, str(error)) from None
        content = secret.data.get(SECRET_KEY)
        if content is None:
            raise CloudUnavailable(
                "CredentialInvalid",
                f"Secret {account.secret} of {FIELD} has no key {SECRET_KEY}: store the JSON key file of a service "
                "account under it",
            )
        return content

    def _provider(self, account: Account, content: bytes | None) -> Provider:
        digest = hashlib.sha256(content or b"").digest()
        known = self._entries.get(account)
        if known is not None and known.digest == digest:
            self._entries[account] = _Entry(known.provider, digest, self._clock())
            return known.provider
        try:
            provider = self._connect(account.project, content)
        except CloudUnauthorized as error:
            raise CloudUnavailable("CredentialInvalid", f"Secret {account.secret} of {FIELD}: {error}") from None
        if known is not None:
            self._retired.append(known.provider)  # calls may be under way
        self._rejected.discard(account)
        self._entries[account] = _Entry(provider, digest, self._clock())
        return provider


def account_of(namespace: str, project: str, reference: ObjectReference | None) -> Account:
    if reference is None:
        return Account(project, None)
    return Account(project, Key(reference.namespace or namespace, reference.name))
