"""Errors of checkpoint images and registries. Each message names what was tried, on what, and what would help."""

from holdfast.checkpoints.errors import CheckpointError, CheckpointNotFound, Corrupt


class ImageError(CheckpointError):
    """The base class of all errors of checkpoint images."""


class InvalidImageReference(ImageError):
    """The text does not name a registry, a repository or an image."""


class InvalidRegistrySecret(ImageError):
    """The Secret holds no credential that can be read."""


class UnusableImage(ImageError, CheckpointNotFound):
    """Nothing can be resumed from the image, wherever that is tried: it is damaged, gone, or no checkpoint."""


class ArchiveRefused(ImageError):
    """The archive of a container checkpoint is not pushed: it is incomplete or holds what it must not hold."""


class ArchiveTruncated(ArchiveRefused):
    """The archive ends too early."""


class ArchiveUnsafe(ArchiveRefused):
    """The archive holds links, devices, or paths that leave it."""


class RegistryError(ImageError):
    """The registry refuses, or answers what no registry should answer."""


class RegistryUnauthorized(RegistryError):
    """The registry does not accept the credential, even with a fresh token (401)."""


class RegistryForbidden(RegistryError):
    """The credential is known, and lacks the right (403)."""


class RepositoryNotFound(RegistryError):
    """The registry has no such repository (404)."""


class ImageNotFound(RegistryError):
    """The repository has no such manifest or blob (404)."""


class LayerTooLarge(RegistryError):
    """The registry, or a proxy before it, takes no blob of this size (413)."""


class DigestMismatch(RegistryError, Corrupt):
    """The content is not what its digest says."""


class RegistryUnreachable(RegistryError):
    """The registry did not do what was asked before the deadline, though it was asked again and again."""


class DeletionUnsupported(RegistryError):
    """The registry deletes nothing (405): images have to be removed by its own means."""


class RedirectRefused(RegistryError):
    """The registry points to another host for something that must come from itself."""


class PlainHttpRefused(RegistryError):
    """The registry is to be reached without TLS, and is not in the list of those that may be."""
