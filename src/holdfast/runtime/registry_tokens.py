"""Credentials of registries that are made for one run, where a CheckpointBackup names no Secret.

The controller of CheckpointBackups asks; the kind that the backup belongs to makes them. Neither knows the other.
"""

from typing import Protocol

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.credentials import RegistryCredential


class PushTokens(Protocol):
    async def push_token(self, backup: CheckpointBackup) -> RegistryCredential | None:
        """A credential of an hour for the backup's registry; None where none is made, so that it is asked anonymously.

        Raises `SecretUnavailable` or a `ProviderError`, with what would change that, and a `ClusterError`.
        """
        ...


class NoPushTokens:
    """For an operator that makes none."""

    async def push_token(self, backup: CheckpointBackup) -> RegistryCredential | None:
        return None
