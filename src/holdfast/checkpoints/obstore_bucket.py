"""A bucket of S3, Google Cloud Storage or Azure, through obstore."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import obstore
from obstore.exceptions import BaseError, InvalidPathError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, S3Store

from holdfast.checkpoints.errors import (
    AccessDenied,
    BucketNotFound,
    InvalidStoreUrl,
    ReadOnly,
    StorageFull,
    StoreError,
    StoreUnreachable,
    UnsafeContent,
)
from holdfast.checkpoints.object_store import BucketObject

# Error messages for the answers of an object store. obstore's own messages are not passed on: they may hold secrets.

STATUS = re.compile(r"status code: (\d{3})")
CODE = re.compile(r"<Code>(\w{1,64})</Code>")

NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"}
WRONG = {
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"),
    *("AuthenticationFailed", "AuthorizationFailure", "InvalidAuthenticationInfo", "NoAuthenticationInformation"),
    *("InvalidSecurity", "AuthenticationRequired", "AccountProblem", "NotSignedUp"),
}
SKEWED = {"RequestTimeTooSkewed", "RequestExpired"}
FULL = {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "AccountQuotaExceeded", "StorageQuotaExceeded"}
# Metadata servers, which are queried for credentials when none are set; no answer means that there are none.
METADATA = ("169.254.169.254", "169.254.170", "metadata.google.internal", "metadata.goog", "login.microsoftonline")
SETTINGS = ("credential", "missing", "configuration", "unable to parse", "invalid", "private key", "decode")


def translate_error(error: Exception, tried: str, address: str, *, writing: bool) -> StoreError:
    """Translate an error of obstore into an error of this package."""
    text = str(error)
    status, code = STATUS.search(text), CODE.search(text)
    kind, hint = _classify(error, text, int(status[1]) if status else 0, code[1] if code else "", writing=writing)
    reason = code[1] if code else f"HTTP {status[1]}" if status else kind.__name__
    return kind(f"can't {tried} in {address} ({reason}): {hint}")


def _classify(error: Exception, text: str, status: int, code: str, *, writing: bool) -> tuple[type[StoreError], str]:
    if isinstance(error, InvalidPathError):
        return InvalidStoreUrl, "an object there has a name with an empty part, '..' or a control character; remove it"
    if code in NO_BUCKET:
        return BucketNotFound, "there is no such bucket or container; create it, or correct checkpoint.storage"
    if code in SKEWED:
        return AccessDenied, "the clock of this machine is off; set it, and the signatures are accepted again"
    if code in FULL or status == 507:
        return (
            StorageFull,
            "the store is full, or its quota used up; free space there, or keep fewer checkpoints (retention)",
        )
    if any(host in text for host in METADATA):
        return AccessDenied, "there are no credentials; create the Secret of secretRef, or name one that is there"
    if code in WRONG or status == 401 or isinstance(error, UnauthenticatedError):
        return AccessDenied, "the store does not accept the credentials; correct the Secret of secretRef"
    if status == 403 or isinstance(error, PermissionDeniedError):
        return _forbidden(writing=writing)
    if status == 429 or status >= 500:
        return StoreUnreachable, "the store has an error of its own or too many requests; it is tried again"
    if not status and isinstance(error, BaseError) and _is_network(text):
        return StoreUnreachable, "no answer; check the endpoint and the network between, it is tried again"
    if not status and any(keyword in text.lower() for keyword in SETTINGS):
        return InvalidStoreUrl, "the settings or credentials can't be used; correct checkpoint.storage and its Secret"
    if status == 404:
        return BucketNotFound, "there is no such bucket or container; create it, or correct checkpoint.storage"
    return StoreError, "an answer that holdfast does not know; look at the store's own log"


def _forbidden(*, writing: bool) -> tuple[type[StoreError], str]:
    if writing:
        return ReadOnly, "the credentials do not allow writing there; allow put and delete below the prefix"
    return AccessDenied, "the credentials do not allow reading there; allow list and get below the prefix"


def _is_network(text: str) -> bool:
    phrases = ("error sending request", "HTTP error", "timed out", "operation timed out", "connection", "dns error")
    return any(phrase.lower() in text.lower() for phrase in phrases)


# S3 takes no smaller part than 5 MiB, and no more than 10,000 of them.
PART_BYTES = 5 << 20
MAX_PARTS = 9_000
READ_BYTES = 1 << 20
# A broken stream is resumed at its offset, as long as attempts make progress.
ATTEMPTS_WITHOUT_PROGRESS = 4
# S3 copies no larger object in one request.
COPY_BYTES = 4 << 30
SHA256 = "sha256"
FAILURES = (BaseError, OSError, ValueError)


class ObstoreBucket:
    """obstore is given the prefix, and refuses keys that would leave it."""

    def __init__(self, store: S3Store | GCSStore | AzureStore, address: str) -> None:
        self._store = store
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    def objects(self, folder: str) -> list[BucketObject]:
        with self._translating_errors(f"list {folder or 'files'}"):
            return [
                BucketObject(item["path"], item["size"])
                for items in obstore.list(self._store, folder)
                for item in items
            ]

    def folders(self, folder: str) -> list[str]:
        return self._listed(folder)[0]

    def files(self, folder: str) -> list[str]:
        return self._listed(folder)[1]

    def read(self, key: str, limit: int) -> bytes | None:
        with self._translating_errors(f"read {key}"):
            try:
                answer = obstore.get(self._store, key)
                if answer.meta["size"] > limit:
                    raise UnsafeContent(
                        f"{key} in {self._address} is larger than {limit >> 10} KiB: it is not holdfast's"
                    )
                return bytes(answer.bytes())
            except FileNotFoundError as error:
                self._ensure_bucket_exists(error)
                return None

    def sha256(self, key: str) -> str | None:
        with self._translating_errors(f"look at {key}"):
            try:
                return obstore.get(self._store, key, options={"head": True}).attributes.get(SHA256)
            except FileNotFoundError:
                return None

    def put(self, key: str, content: bytes) -> None:
        with self._translating_errors(f"write {key}", writing=True):
            obstore.put(self._store, key, content, use_multipart=False)

    def put_file(self, key: str, file: Path, size: int, sha256: str, *, parts_at_once: int) -> None:
        part = max(PART_BYTES, -(-size // MAX_PARTS))
        with self._translating_errors(f"write {key}", writing=True):
            obstore.put(
                self._store,
                key,
                file,
                attributes={SHA256: sha256},
                use_multipart=size > part,
                chunk_size=part,
                max_concurrency=parts_at_once,
            )

    def stream(self, key: str, offset: int = 0) -> Iterator[bytes | memoryview]:
        size, failures = -1, 0
        # Stores reject a range that begins at the end: a stream that broke right there is complete.
        while offset != size:
            try:
                answer = obstore.get(self._store, key, options={"range": {"offset": offset}} if offset else None)
                size = answer.meta["size"]
                for chunk in answer.stream(min_chunk_size=READ_BYTES):
                    yield memoryview(chunk)
                    offset, failures = offset + len(chunk), 0
                return
            except FileNotFoundError as error:
                self._ensure_bucket_exists(error)
                return
            except FAILURES as error:
                failures += 1
                if failures == ATTEMPTS_WITHOUT_PROGRESS:
                    raise translate_error(error, f"read {key}", self._address, writing=False) from None

    def copy(self, source: str, target: str, size: int) -> None:
        with self._translating_errors(f"copy {source}", writing=True):
            if size <= COPY_BYTES:
                obstore.copy(self._store, source, target)
            else:
                part = max(PART_BYTES, -(-size // MAX_PARTS))
                obstore.put(self._store, target, self.stream(source), chunk_size=part, max_concurrency=1)

    def delete(self, keys: Sequence[str]) -> None:
        with self._translating_errors("delete", writing=True):
            try:
                obstore.delete(self._store, keys)
            except FileNotFoundError:
                # Some stores fail when one of the keys is gone already, and do not delete the others.
                for key in keys:
                    with contextlib.suppress(FileNotFoundError):
                        obstore.delete(self._store, key)

    def _listed(self, folder: str) -> tuple[list[str], list[str]]:
        """The names of the folders, and of the files, in a folder."""
        with self._translating_errors(f"list {folder or 'checkpoints'}"):
            found = obstore.list_with_delimiter(self._store, folder or None)
        files = (item["path"] for item in found["objects"])
        return [_leaf(path) for path in found["common_prefixes"]], [_leaf(path) for path in files]

    def _ensure_bucket_exists(self, error: FileNotFoundError) -> None:
        """A missing bucket must not pass for a missing checkpoint: a training would begin anew."""
        code = CODE.search(str(error))
        if code and code[1] in NO_BUCKET:
            raise translate_error(error, "read checkpoints", self._address, writing=False) from None

    @contextlib.contextmanager
    def _translating_errors(self, tried: str, *, writing: bool = False) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise _not_found(error, tried, self._address, writing=writing) from None
        except FAILURES as error:
            raise translate_error(error, tried, self._address, writing=writing) from None


def _not_found(error: FileNotFoundError, tried: str, address: str, *, writing: bool) -> StoreError:
    """Not found in a list or a write means that the bucket is missing, whatever the error code of the store."""
    found = translate_error(error, tried, address, writing=writing)
    return (
        found
        if isinstance(found, BucketNotFound)
        else BucketNotFound(f"can't {tried} in {address}: there is no such bucket")
    )


def _leaf(path: str) -> str:
    return path.rsplit("/", 1)[-1]
