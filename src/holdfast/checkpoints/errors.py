"""Errors of checkpoints. Each message names the operation, its target, and what the user can do."""

from holdfast.errors import HoldfastError


class CheckpointError(HoldfastError):
    """The base class of all checkpoint errors."""


class StoreError(CheckpointError):
    """The checkpoint store fails; the error tells nothing about the checkpoint."""


class AccessDenied(StoreError):
    """The store does not accept the credentials, or does not allow the access."""


class BucketNotFound(StoreError):
    """There is no such bucket or container."""


class ReadOnly(StoreError):
    """The store can be read, but not written."""


class StorageFull(StoreError):
    """No space, or no quota, is left."""


class StoreUnreachable(StoreError):
    """The store does not answer, or asks to retry later."""


class InvalidStoreUrl(StoreError):
    """The address or the settings of the store are invalid."""


class CheckpointNotFound(CheckpointError):
    """There is no checkpoint of that name, or the checkpoint has no manifest."""


class Incomplete(CheckpointError):
    """The checkpoint is still being written, or a part of it is missing."""


class MissingPart(Incomplete):
    """Another worker has not uploaded its part, and perhaps never will."""


class UnsafeContent(CheckpointError):
    """The content of the folder or the manifest can't be stored, or would be dangerous to unpack."""


class InvalidCheckpointManifest(UnsafeContent):
    """The manifest can't be read, is of an unknown version, or describes another checkpoint."""


class Corrupt(CheckpointError):
    """The content differs from the manifest."""
