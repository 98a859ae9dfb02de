"""Kubeconfig files: their shape, and how several of them become one."""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import field
from msgspec.structs import replace

from holdfast.api.manifests import InvalidManifest, documents
from holdfast.cluster.errors import Misconfigured
from holdfast.cluster.kubernetes.private import RedactedStruct

_YAML: TypeAlias = Any  # what a YAML document holds before its shape is checked


class ExecVariable(RedactedStruct, frozen=True, kw_only=True):
    name: str
    value: str = ""


class ExecPlugin(RedactedStruct, frozen=True, kw_only=True, rename="camel"):
    """A command that prints credentials, as client.authentication.k8s.io describes it."""

    api_version: str
    command: str
    args: tuple[str, ...] = ()
    env: tuple[ExecVariable, ...] = ()
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"


class UserEntry(RedactedStruct, frozen=True, kw_only=True, rename="kebab"):
    token: str = ""
    token_file: str = field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: ExecPlugin | None = None
    auth_provider: dict[str, _YAML] | None = None
    as_user: str = field(default="", name="as")
    as_uid: str = ""
    as_groups: tuple[str, ...] = ()
    as_user_extra: dict[str, tuple[str, ...]] = {}


class Extension(RedactedStruct, frozen=True, kw_only=True):
    name: str
    extension: _YAML = None


class ClusterEntry(RedactedStruct, frozen=True, kw_only=True, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: tuple[Extension, ...] = ()


class ContextEntry(RedactedStruct, frozen=True, kw_only=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class NamedUser(RedactedStruct, frozen=True, kw_only=True):
    name: str
    user: UserEntry = UserEntry()


class NamedCluster(RedactedStruct, frozen=True, kw_only=True):
    name: str
    cluster: ClusterEntry = ClusterEntry()


class NamedContext(RedactedStruct, frozen=True, kw_only=True):
    name: str
    context: ContextEntry = ContextEntry()


class Kubeconfig(RedactedStruct, frozen=True, kw_only=True, rename="kebab"):
    current_context: str = ""
    contexts: tuple[NamedContext, ...] = ()
    clusters: tuple[NamedCluster, ...] = ()
    users: tuple[NamedUser, ...] = ()


class MergedKubeconfig(RedactedStruct, frozen=True, kw_only=True):
    """All files as one; paths in it are absolute."""

    current_context: str
    contexts: Mapping[str, ContextEntry]
    clusters: Mapping[str, ClusterEntry]
    users: Mapping[str, UserEntry]

    def __bool__(self) -> bool:
        return bool(self.current_context or self.contexts or self.clusters or self.users)


def read_merged(paths: Iterable[Path]) -> MergedKubeconfig:
    """The first file that names a thing decides what it is, as kubectl has it."""
    files = [_read(path) for path in paths]
    return MergedKubeconfig(
        current_context=next((file.current_context for file in files if file.current_context), ""),
        contexts={entry.name: entry.context for file in reversed(files) for entry in reversed(file.contexts)},
        clusters={entry.name: entry.cluster for file in reversed(files) for entry in reversed(file.clusters)},
        users={entry.name: entry.user for file in reversed(files) for entry in reversed(file.users)},
    )


def decoded(data: str, what: str) -> bytes:
    """The bytes behind one of a kubeconfig's `…-data` fields."""
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        raise Misconfigured(f"the kubeconfig's {what} is not base64") from None


def _read(path: Path) -> Kubeconfig:
    try:
        # The reader of manifests: a date is text as kubectl has it, and neither aliases nor depth can exhaust it.
        read = [*documents(path.read_bytes().decode("utf-8-sig"))]
        file = msgspec.convert(_without_nulls(read[0]) if read else {}, Kubeconfig)
    except OSError as error:
        raise Misconfigured(f"cannot read the kubeconfig {path}: {error.strerror}") from None
    except InvalidManifest as error:
        # The parser's own text quotes the file, which holds secrets.
        problem = re.sub(r"'[^']*'|\S+(?= is no)", "…", str(error))
        raise Misconfigured(f"the kubeconfig {path} is not YAML: {problem}") from None
    except UnicodeError:
        raise Misconfigured(f"the kubeconfig {path} is not YAML: it is not UTF-8") from None
    except msgspec.ValidationError as error:
        raise Misconfigured(f"the kubeconfig {path} is not one: {error}") from None
    return _resolved(file, path.absolute().parent)


def _without_nulls(value: _YAML) -> _YAML:
    """kubectl writes `users: null` and `env: null` where there is nothing."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value


def _resolved(file: Kubeconfig, folder: Path) -> Kubeconfig:
    clusters = tuple(replace(named, cluster=_resolved_cluster(named.cluster, folder)) for named in file.clusters)
    users = tuple(replace(named, user=_resolved_user(named.user, folder)) for named in file.users)
    return replace(file, clusters=clusters, users=users)


def _resolved_cluster(cluster: ClusterEntry, folder: Path) -> ClusterEntry:
    return replace(cluster, certificate_authority=_within(folder, cluster.certificate_authority))


def _resolved_user(user: UserEntry, folder: Path) -> UserEntry:
    plugin = user.exec
    if plugin and "/" in plugin.command:  # a bare name is looked up in PATH
        plugin = replace(plugin, command=_within(folder, plugin.command))
    return replace(
        user,
        token_file=_within(folder, user.token_file),
        client_certificate=_within(folder, user.client_certificate),
        client_key=_within(folder, user.client_key),
        exec=plugin,
    )


def _within(folder: Path, path: str) -> str:
    return str(folder / path) if path else ""
