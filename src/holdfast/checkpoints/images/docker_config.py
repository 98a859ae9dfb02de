"""Credentials of a registry from a Secret: a docker config, or the plain keys username and password."""

import base64
import binascii
import fnmatch
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from holdfast.api.credentials import RegistryCredential
from holdfast.checkpoints.images.errors import InvalidRegistrySecret
from holdfast.checkpoints.images.reference import DOCKER_HUB, DOCKER_HUB_API
from holdfast.checkpoints.images.untrusted import UnreadableJson, decode_json

DOCKER_CONFIG = ".dockerconfigjson"
CA = "ca.crt"
_DOCKER_HUB_NAMES = frozenset((DOCKER_HUB, DOCKER_HUB_API, f"index.{DOCKER_HUB}"))


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""

    def __repr__(self) -> str:
        return "_Entry()"


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    auths: dict[str, _Entry] = {}

    def __repr__(self) -> str:
        return f"_Config({', '.join(self.auths)})"


def credential_from_secret(data: Mapping[str, bytes], host: str, repository: str) -> RegistryCredential:
    """The credential for a repository; anonymous if the docker config has none for it. `data` is decoded already."""
    authority = _text(data[CA], CA) if CA in data else ""
    if DOCKER_CONFIG in data:
        found = match(_config(data[DOCKER_CONFIG]), host, repository)
    elif "username" in data and "password" in data:
        found = RegistryCredential(
            username=_text(data["username"], "username").strip("\n"),
            password=_text(data["password"], "password").strip("\n"),
        )
    elif "username" in data or "password" in data or not authority:
        raise InvalidRegistrySecret(
            f"the Secret has the keys {', '.join(sorted(data)) or '(none)'}: it needs {DOCKER_CONFIG}, or username "
            "and password"
        )
    else:
        found = RegistryCredential()
    return msgspec.structs.replace(found, authority=authority)


def match(auths: Mapping[str, RegistryCredential], host: str, repository: str) -> RegistryCredential:
    """The entry that Kubernetes would use: host, of which a * may be a part, port and path match; the longest first."""
    for key in sorted(auths, key=lambda key: (len(key), key), reverse=True):
        if _matches(_place(key), host, repository):
            return auths[key]
    return RegistryCredential()


class _Place(NamedTuple):
    host: str
    port: str
    path: str


def _place(key: str) -> _Place:
    rest = key.partition("://")[2] or key
    host, _, path = rest.partition("/")
    path = path.strip("/")
    # Docker writes the versions of its first protocols behind the host.
    path = "" if path in ("v1", "v2") else path
    return _Place(*_split_port(host.lower()), path)


def _split_port(host: str) -> tuple[str, str]:
    name, colon, port = host.rpartition(":")
    return (name, port) if colon and port.isdigit() else (host, "")


def _matches(place: _Place, host: str, repository: str) -> bool:
    name, port = _split_port(host.lower())
    if place.port != port:
        return False
    if place.path and not f"{repository}/".startswith(f"{place.path}/"):
        return False
    if name in _DOCKER_HUB_NAMES:
        return place.host in _DOCKER_HUB_NAMES
    # Part by part: a * never stands for a dot.
    wanted, parts = place.host.split("."), name.split(".")
    return len(wanted) == len(parts) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _config(content: bytes) -> dict[str, RegistryCredential]:
    try:
        auths = decode_json(content, _Config).auths
    except UnreadableJson:
        # The decoder's message may show a part of the content.
        raise InvalidRegistrySecret(
            f"the Secret's {DOCKER_CONFIG} is not a docker config: create it with "
            "`kubectl create secret docker-registry`"
        ) from None
    return {key: _credential(key, entry) for key, entry in auths.items()}


def _credential(key: str, entry: _Entry) -> RegistryCredential:
    username, password = entry.username, entry.password
    if entry.auth and not (username and password):
        try:
            decoded = base64.b64decode(entry.auth, validate=True).decode()
        except (binascii.Error, ValueError):
            raise InvalidRegistrySecret(
                f"the Secret's docker config has an `auth` for {key!a} that is not base64: create it anew"
            ) from None
        username, _, password = decoded.partition(":")
    # An identity token stands in the place of the password of this user.
    if username == "<token>" and not entry.identitytoken:
        return RegistryCredential(identity_token=password)
    return RegistryCredential(username=username, password=password.rstrip("\0"), identity_token=entry.identitytoken)


def _text(value: bytes, key: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidRegistrySecret(f"the Secret's {key} is not text") from None
