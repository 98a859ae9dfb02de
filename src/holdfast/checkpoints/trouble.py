"""What an object store's answer means to a person. obstore's own words are not passed on: they may hold secrets."""

import re

from obstore.exceptions import BaseError, InvalidPathError, PermissionDeniedError, UnauthenticatedError

from holdfast.checkpoints.errors import (
    AccessDenied,
    BucketNotFound,
    InvalidStoreUrl,
    ReadOnly,
    StorageFull,
    StoreError,
    Unreachable,
)

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
# Where credentials are asked for when none are set; no answer means that there are none.
METADATA = ("169.254.169.254", "169.254.170", "metadata.google.internal", "metadata.goog", "login.microsoftonline")
SETTINGS = ("credential", "missing", "configuration", "unable to parse", "invalid", "private key", "decode")


def translate_error(error: Exception, tried: str, address: str, *, writing: bool) -> StoreError:
    """The error of this package's own for one of obstore's."""
    text = str(error)
    status, code = STATUS.search(text), CODE.search(text)
    kind, hint = _classify(error, text, int(status[1]) if status else 0, code[1] if code else "", writing=writing)
    said = code[1] if code else f"HTTP {status[1]}" if status else kind.__name__
    return kind(f"can't {tried} in {address} ({said}): {hint}")


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
    if any(place in text for place in METADATA):
        return AccessDenied, "there are no credentials; create the Secret of secretRef, or name one that is there"
    if code in WRONG or status == 401 or isinstance(error, UnauthenticatedError):
        return AccessDenied, "the store does not accept the credentials; correct the Secret of secretRef"
    if status == 403 or isinstance(error, PermissionDeniedError):
        return _forbidden(writing=writing)
    if status == 429 or status >= 500:
        return Unreachable, "the store has trouble of its own or too much to do; it is tried again"
    if not status and isinstance(error, BaseError) and _is_network(text):
        return Unreachable, "no answer; check the endpoint and the network between, it is tried again"
    if not status and any(word in text.lower() for word in SETTINGS):
        return InvalidStoreUrl, "the settings or credentials can't be used; correct checkpoint.storage and its Secret"
    if status == 404:
        return BucketNotFound, "there is no such bucket or container; create it, or correct checkpoint.storage"
    return StoreError, "an answer that holdfast does not know; look at the store's own log"


def _forbidden(*, writing: bool) -> tuple[type[StoreError], str]:
    if writing:
        return ReadOnly, "the credentials do not allow writing there; allow put and delete below the prefix"
    return AccessDenied, "the credentials do not allow reading there; allow list and get below the prefix"


def _is_network(text: str) -> bool:
    words = ("error sending request", "HTTP error", "timed out", "operation timed out", "connection", "dns error")
    return any(word.lower() in text.lower() for word in words)
