"""ConfigMaps and Secrets: texts that pods find as files and variables."""

import re
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Iterator

from holdfast.cluster.embedded.kind import KindHooks
from holdfast.cluster.embedded.refusals import bad_value, forbidden
from holdfast.cluster.errors import BadRequest, Cause
from holdfast.cluster.protocol import JSON

MOST_BYTES = 1024 * 1024
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_KEY_PROBLEM = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' "
    "(e.g. 'key.name'), and must be neither '.' nor start with '..'"
)


def _validate_data(document: JSON, old: JSON | None) -> Iterator[Cause]:
    for field in ("data", "binaryData"):
        # Keys become file names: one that leads out of its folder must never get in.
        for key in document.get(field, {}):
            if not _KEY.fullmatch(key) or key == "." or key.startswith(".."):
                yield bad_value(f"{field}[{key}]", key, _KEY_PROBLEM)
    values = (value for field in ("data", "binaryData") for value in document.get(field, {}).values())
    if sum(len(value.encode()) for value in values) > MOST_BYTES:
        yield Cause("", f"Too long: may not be more than {MOST_BYTES} bytes", "FieldValueTooLong")
    if old is not None and old.get("immutable"):
        for field in ("immutable", "data", "binaryData"):
            if document.get(field) != old.get(field):
                yield forbidden(field, "field is immutable when `immutable` is set")


def _complete_secret(secret: JSON) -> None:
    texts = secret.pop("stringData", {})
    if texts:
        encoded = {key: b64encode(text.encode()).decode() for key, text in texts.items()}
        secret["data"] = secret.get("data", {}) | encoded
    for key, value in secret.get("data", {}).items():
        try:
            b64decode(value, validate=True)
        except Error:
            # Without the value: it may be the secret itself, written without its encoding.
            raise BadRequest(
                f'Secret in version "v1" cannot be handled as a Secret: data[{key}] is no base64; put plain text '
                "under stringData"
            ) from None


def _secret_problems(secret: JSON, old: JSON | None) -> Iterator[Cause]:
    yield from _validate_data(secret, old)
    if old is not None and secret.get("type") != old.get("type"):
        yield bad_value("type", secret.get("type", ""), "field is immutable")


CONFIG_MAPS = KindHooks(validate=_validate_data)
SECRETS = KindHooks(fields=KindHooks().fields | {"type"}, set_defaults=_complete_secret, validate=_secret_problems)
