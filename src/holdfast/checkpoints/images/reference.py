"""Names of images: host, repository, tag and digest; and the tag of one run."""

import hashlib
import re
from collections.abc import Collection
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from holdfast.checkpoints.images.errors import InvalidImageReference, PlainHttpRefused

_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = rf"{_COMPONENT}(?:/{_COMPONENT})*"
TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
MAX_REPOSITORY = 255
MAX_TAG = 128

# Docker Hub's registry has another name than its images; docker config files know it by a third.
DOCKER_HUB = "docker.io"
DOCKER_HUB_API = "registry-1.docker.io"

_TIME = "%Y%m%dT%H%M%SZ"
_RUN_TAG = re.compile(r"(?P<prefix>.+)-(?P<run>[0-9]{6,})-(?P<time>[0-9]{8}T[0-9]{6}Z)")


class ImageReference(msgspec.Struct, frozen=True, kw_only=True):
    """host[:port]/repository[:tag][@digest]"""

    host: str
    repository: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.host}/{self.repository}{tag}{digest}"

    def by_digest(self, digest: str) -> "ImageReference":
        """The same image by its digest alone, as a restored pod names it."""
        return msgspec.structs.replace(self, tag="", digest=digest)


def parse_reference(text: str) -> ImageReference:
    """An image's full name. A name without a host is refused: it would mean another registry on another node."""
    rest, _, digest = text.partition("@")
    host, slash, path = rest.partition("/")
    if not slash or not (host == "localhost" or "." in host or ":" in host):
        raise InvalidImageReference(f"the image {text!a} names no registry: write registry.example.com/repository:tag")
    repository, colon, tag = path.partition(":")
    if colon and not TAG.fullmatch(tag):
        raise InvalidImageReference(
            f"the image {text!a} has no valid tag: write up to {MAX_TAG} letters, digits, '.', '_' and '-'"
        )
    if "@" in text and not DIGEST.fullmatch(digest):
        raise InvalidImageReference(f"the image {text!a} has no valid digest: write @sha256: and 64 hexadecimal digits")
    return ImageReference(host=checked_host(host), repository=checked_repository(repository), tag=tag, digest=digest)


def checked_host(host: str) -> str:
    if not re.fullmatch(_HOST, host) or not is_url(f"https://{host}/"):
        raise InvalidImageReference(f"{host!a} is no host of a registry: write registry.example.com or 10.0.0.1:5000")
    return host.lower()


def checked_repository(repository: str) -> str:
    if not re.fullmatch(_REPOSITORY, repository) or len(repository) > MAX_REPOSITORY:
        raise InvalidImageReference(
            f"{repository!a} is no repository: write it in lower case without host and tag, such as team/checkpoints"
        )
    return repository


class RegistryAddress(NamedTuple):
    """Where a registry is reached: `host` as images name it, `origin` as requests do."""

    host: str
    origin: str


def registry_address(url: str, plain_http: Collection[str] = ()) -> RegistryAddress:
    """The registry of a CheckpointBackup. plain_http: hosts, with their ports, that may be reached without TLS."""
    scheme, _, rest = url.rpartition("://")
    host = checked_host(rest.removesuffix("/"))
    if scheme not in ("", "http", "https"):
        raise InvalidImageReference(f"the registry {url!a} has the scheme {scheme}: write https:// or the host alone")
    is_plain = scheme == "http" or (not scheme and host in plain_http)
    if is_plain and host not in plain_http:
        raise PlainHttpRefused(
            f"the registry {host} is not reached over plain HTTP: write https://, or list {host} with the option "
            "--plain-http-registry of operator, agents and commands"
        )
    api = DOCKER_HUB_API if host in (DOCKER_HUB, f"index.{DOCKER_HUB}") else host
    return RegistryAddress(host, f"{'http' if is_plain else 'https'}://{api}")


def is_url(text: str) -> bool:
    """Whether a request can be sent there, and with no other credential than our own."""
    try:
        parts = urlsplit(text)
        is_valid = parts.port is None or parts.port >= 0  # raises for a port that there can't be
    except ValueError:
        return False
    return is_valid and bool(parts.hostname) and "@" not in parts.netloc and text.isascii() and text.isprintable()


def same_host(one: str, other: str) -> bool:
    """Whether two URLs lead to one host and port."""
    return _host_port(one) == _host_port(other)


def _host_port(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    return parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


class RunTag(NamedTuple):
    """What the tag of a run tells. `prefix` is of name and container."""

    prefix: str
    run: int
    time: str


def tag_prefix(name: str, container: str) -> str:
    """What the tags of one backup's container begin with; long names are cut, and a hash keeps them apart."""
    whole = f"{name}-{container}"
    room = MAX_TAG - len("-0000000000-00000000T000000Z")
    if len(whole) <= room and TAG.fullmatch(whole):
        return whole
    digest = hashlib.sha256(f"{name}/{container}".encode()).hexdigest()[:10]
    cut = re.sub(r"[^a-zA-Z0-9._-]", "-", whole)[: room - len(digest) - 1]
    return f"{cut.lstrip('.-') or 'x'}-{digest}"


def run_tag(name: str, container: str, run: int, at: datetime) -> str:
    """The tag of one run: sorted by name they are sorted by run."""
    return f"{tag_prefix(name, container)}-{run:06d}-{at.astimezone(UTC).strftime(_TIME)}"


def parse_run_tag(tag: str) -> RunTag | None:
    """None for a tag that is not one of a run."""
    found = _RUN_TAG.fullmatch(tag) if TAG.fullmatch(tag) else None
    return RunTag(found["prefix"], int(found["run"]), found["time"]) if found else None
