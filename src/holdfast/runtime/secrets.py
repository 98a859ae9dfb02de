"""Reads the Secrets that users refer to: by get alone, where an administrator and the Secret itself allow it."""

import re
from typing import Literal, TypeAlias

from holdfast.api.core.objects import Secret
from holdfast.api.core.pod import ObjectReference
from holdfast.api.credentials import ALLOW_NAMESPACES
from holdfast.api.meta import Key
from holdfast.cluster.errors import Forbidden, NotFound, Undecodable
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import SECRETS
from holdfast.errors import HoldfastError

# What administrators bind in the namespaces whose Secrets the operator may read.
SECRETS_ROLE = "holdfast-secrets"

Problem: TypeAlias = Literal["SecretMissing", "SecretNotAllowed", "SecretForbidden", "SecretUnreadable"]


class SecretUnavailable(HoldfastError):
    """The Secret can't be used as things are; the text says what would change that."""

    def __init__(self, reason: Problem, message: str) -> None:
        super().__init__(message)
        self.reason: Problem = reason


class SecretReader:
    """`operator_account` is that of this operator, for messages, as namespace:name."""

    def __init__(self, cluster: Cluster, *, operator_account: str) -> None:
        self._cluster = cluster
        self._operator_account = operator_account

    async def read(self, reference: ObjectReference, namespace: str, *, field: str) -> Secret:
        """The Secret, if an object of this namespace may use it. `field` is where the object refers to it."""
        key = Key(reference.namespace or namespace, reference.name)
        is_foreign = key.namespace != namespace
        # Only namespaces that the Secret allows learn whether it exists.
        unusable = SecretUnavailable(
            "SecretNotAllowed",
            f"Secret {key} of {field} does not exist, or does not allow its use: list {namespace} in its annotation "
            f"{ALLOW_NAMESPACES}",
        )
        try:
            secret = await self._cluster.get(SECRETS, key)
        except NotFound:
            if is_foreign:
                raise unusable from None
            raise SecretUnavailable("SecretMissing", f"Secret {key} of {field} does not exist: create it") from None
        except Forbidden as error:
            raise SecretUnavailable("SecretForbidden", self._missing_right(key, field, error)) from None
        except Undecodable:
            raise SecretUnavailable(
                "SecretUnreadable", f"Secret {key} of {field} can't be read: create it anew"
            ) from None
        if is_foreign and not _allows(secret, namespace):
            raise unusable
        return secret

    def _missing_right(self, key: Key, field: str, error: Forbidden) -> str:
        found = re.search(r'User "system:serviceaccount:([^":]+:[^":]+)"', str(error))
        user = None if found else re.search(r'User "([^"]+)"', str(error))
        subject = f"--user={user[1]}" if user else f"--serviceaccount={found[1] if found else self._operator_account}"
        return (
            f"the operator may not read Secret {key} of {field}: an administrator can allow it with "
            f"`kubectl create rolebinding {SECRETS_ROLE} --namespace={key.namespace} --clusterrole={SECRETS_ROLE} "
            f"{subject}`"
        )


def _allows(secret: Secret, namespace: str) -> bool:
    listed = secret.metadata.annotations.get(ALLOW_NAMESPACES, "").split(",")
    return any(each.strip() in ("*", namespace) for each in listed)
