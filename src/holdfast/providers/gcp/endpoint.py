"""Where Google is asked. Another address is set for the operator alone, never by a user: it is shown the keys."""

from urllib.parse import urlsplit

from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.providers.gcp.credentials import TOKEN_URI

# Of the operator's environment: the address of a stand-in for Google, without a path.
ENVIRONMENT = "HOLDFAST_GCP_ENDPOINT"


class GoogleEndpoint(Struct, frozen=True):
    compute: str = "https://compute.googleapis.com/compute/v1"
    token_uri: str = TOKEN_URI
    metadata: str = "http://169.254.169.254"


GOOGLE = GoogleEndpoint()


def endpoint_at(address: str) -> GoogleEndpoint:
    """Google itself for an empty address."""
    if not address:
        return GOOGLE
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise HoldfastError(f"{ENVIRONMENT} is {address!a}: write scheme, host and port, as in http://127.0.0.1:8080")
    origin = f"{parts.scheme}://{parts.netloc}"
    return GoogleEndpoint(compute=f"{origin}/compute/v1", token_uri=f"{origin}/token", metadata=origin)
