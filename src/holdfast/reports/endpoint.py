"""Where reports are to be posted, and whom to trust there: written by the leader into each job's ConfigMap.

The file is replaced when another operator leads, so a sidecar reads it anew when it gets no answer.
"""

import msgspec
from msgspec import Struct

from holdfast.errors import HoldfastError

FILE = "reports.json"


class InvalidEndpointFile(HoldfastError):
    """The file with the operator's address is not as it should be."""


class Endpoint(Struct, frozen=True, kw_only=True):
    url: str
    authority: str
    """The one certificate, in PEM, that the server at `url` shows."""


def encode_endpoint(endpoint: Endpoint) -> str:
    return msgspec.json.format(msgspec.json.encode(endpoint)).decode() + "\n"


def decode_endpoint(text: bytes) -> Endpoint:
    try:
        return msgspec.json.decode(text, type=Endpoint)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidEndpointFile(f"{FILE} does not say where to report: {error}") from None
