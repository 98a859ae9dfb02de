"""What can go wrong with checkpoints. Each text says what was tried, on what, and what the user can do."""

from holdfast.errors import HoldfastError


class CheckpointError(HoldfastError):
    """The root of them all."""


class StoreError(CheckpointError):
    """The place where checkpoints are kept does not do what it should; nothing is said about the checkpoint."""


class AccessDenied(StoreError):
    """The store does not know the caller, or does not let it in."""


class BucketNotFound(StoreError):
    """There is no such bucket or container."""


class ReadOnly(StoreError):
    """It can be read, and not written."""


class StorageFull(StoreError):
    """No space, or no quota, is left."""


class Unreachable(StoreError):
    """No answer, or one that says to come back later."""


class InvalidStoreUrl(StoreError):
    """The address or the settings of the store make no sense."""


class CheckpointNotFound(CheckpointError):
    """There is no checkpoint of that name, or it has no manifest."""


class Incomplete(CheckpointError):
    """It is still being written, or a part of it is missing."""


class MissingPart(Incomplete):
    """Another worker has not uploaded its part, and perhaps never will."""


class UnsafeContent(CheckpointError):
    """What the folder or the manifest holds can't be kept, or would be dangerous to unpack."""


class InvalidCheckpointManifest(UnsafeContent):
    """The manifest can't be read, is of an unknown version, or describes something else."""


class Corrupt(CheckpointError):
    """The content is not what the manifest says."""
