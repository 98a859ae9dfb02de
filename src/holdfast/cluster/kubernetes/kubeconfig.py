"""Kubeconfig files: their schema, how several files are merged, and the connection settings in them."""

import base64
import binascii
import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import msgspec
from msgspec import field
from msgspec.structs import replace
from yarl import URL

from holdfast.api.manifests import InvalidManifest, documents
from holdfast.cluster.errors import Misconfigured
from holdfast.cluster.kubernetes.material import PemSource, RedactedStruct
from holdfast.cluster.kubernetes.proxy import checked_proxy, proxy_from_environment
from holdfast.cluster.login import DATA

_YAML: TypeAlias = Any  # a YAML value before validation


class ExecVariable(RedactedStruct, frozen=True, kw_only=True):
    name: str
    value: str = ""


class ExecPlugin(RedactedStruct, frozen=True, kw_only=True, rename="camel"):
    """A command that prints credentials, as defined by client.authentication.k8s.io."""

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
    """All files merged; paths are absolute."""

    current_context: str
    contexts: Mapping[str, ContextEntry]
    clusters: Mapping[str, ClusterEntry]
    users: Mapping[str, UserEntry]

    def __bool__(self) -> bool:
        return bool(self.current_context or self.contexts or self.clusters or self.users)


def read_merged(paths: Iterable[Path]) -> MergedKubeconfig:
    """Merge kubeconfig files; the first file that defines an entry wins, as with kubectl."""
    files = [_read(path) for path in paths]
    return MergedKubeconfig(
        current_context=next((file.current_context for file in files if file.current_context), ""),
        contexts={entry.name: entry.context for file in reversed(files) for entry in reversed(file.contexts)},
        clusters={entry.name: entry.cluster for file in reversed(files) for entry in reversed(file.clusters)},
        users={entry.name: entry.user for file in reversed(files) for entry in reversed(file.users)},
    )


def decoded(data: str, what: str) -> bytes:
    """The decoded bytes of a `…-data` field of a kubeconfig."""
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        raise Misconfigured(f"the kubeconfig's {what} is not base64") from None


def _read(path: Path) -> Kubeconfig:
    try:
        # Parsed like manifests: dates stay text as in kubectl, and neither aliases nor depth can exhaust the parser.
        parsed = [*documents(path.read_bytes().decode("utf-8-sig"))]
        file = msgspec.convert(_without_nulls(parsed[0]) if parsed else {}, Kubeconfig)
    except OSError as error:
        raise Misconfigured(f"cannot read the kubeconfig {path}: {error.strerror}") from None
    except InvalidManifest as error:
        # The parser's message quotes the file, which contains secrets.
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


# The settings of a connection.


class Server(RedactedStruct, frozen=True, kw_only=True):
    """The API server: its address and how to verify its identity."""

    url: str
    authority: PemSource | None = None
    insecure: bool = False
    name: str = ""
    proxy: str = ""
    exec_config: object = None
    data: str = ""
    """The data folder of a `holdfast up`, if it is one."""


class User(RedactedStruct, frozen=True, kw_only=True):
    """The user. At most one of token, password and plugin is used; a client certificate can be used in addition."""

    token: PemSource | None = None
    username: str = ""
    password: str = ""
    certificate: PemSource | None = None
    key: PemSource | None = None
    plugin: ExecPlugin | None = None
    impersonation: tuple[tuple[str, str], ...] = ()


class Config(RedactedStruct, frozen=True, kw_only=True):
    """Everything that a connection needs; `source` tells users where the settings come from."""

    server: Server
    user: User
    namespace: str
    source: str


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def load_config(
    kubeconfig: str = "",
    *,
    context: str = "",
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> Config:
    """Search as kubectl does: the given file, $KUBECONFIG, ~/.kube/config, then the pod's service account."""
    paths, origin = _candidate_files(kubeconfig, environ)
    merged = read_merged(paths)
    if merged:
        return _from_kubeconfig(merged, context, origin, environ)
    if not kubeconfig and _is_in_cluster(environ, service_account):
        return _from_service_account(environ, service_account)
    raise Misconfigured(
        f"no cluster to talk to: {origin} {'says nothing' if paths else 'is not there'}, and this is not a pod "
        "with a service account: pass --kubeconfig FILE or set KUBECONFIG"
    )


def _candidate_files(kubeconfig: str, environ: Mapping[str, str]) -> tuple[list[Path], str]:
    if kubeconfig:
        return [Path(kubeconfig)], kubeconfig
    if listed := environ.get("KUBECONFIG"):
        paths = dict.fromkeys(Path(part) for part in listed.split(os.pathsep) if part)
        return [path for path in paths if _exists(path)], listed
    path = Path(environ.get("HOME") or "/", ".kube", "config")
    return [path] if _exists(path) else [], str(path)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True  # not accessible: reading the file raises the reason


def _from_kubeconfig(merged: MergedKubeconfig, wanted: str, origin: str, environ: Mapping[str, str]) -> Config:
    name = wanted or merged.current_context
    known = ", ".join(sorted(merged.contexts)) or "none"
    if not name:
        raise Misconfigured(
            f"{origin} has no current-context: run `kubectl config use-context NAME` (contexts there: {known})"
        )
    context = merged.contexts.get(name)
    if context is None:
        raise Misconfigured(f"{origin} has no context {name!r} (contexts there: {known})")
    source = f"{origin}, context {name!r}"
    cluster = merged.clusters.get(context.cluster)
    if cluster is None:
        raise Misconfigured(f"{source}: its cluster {context.cluster!r} is not described there")
    user = merged.users.get(context.user)
    if user is None and context.user:
        raise Misconfigured(f"{source}: its user {context.user!r} is not described there")
    config = Config(
        server=_server(cluster, source, environ),
        user=_user(user or UserEntry(), source),
        namespace=context.namespace or "default",
        source=source,
    )
    if _sends_secrets_unencrypted(config):
        raise Misconfigured(
            f"{source}: its server is http://, and whoever is on the way could read the user's token or password: "
            "write https://, or insecure-skip-tls-verify: true beside the server to send it all the same"
        )
    return config


def _sends_secrets_unencrypted(config: Config) -> bool:
    server, user = config.server, config.user
    url = URL(server.url)
    has_secret = bool(user.token or user.username or user.password or user.plugin)
    return url.scheme == "http" and has_secret and not server.insecure and not _is_loopback(url.host or "")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _server(cluster: ClusterEntry, source: str, environ: Mapping[str, str]) -> Server:
    authority = _material("certificate-authority", cluster.certificate_authority_data, cluster.certificate_authority)
    if authority and cluster.insecure_skip_tls_verify:
        raise Misconfigured(f"{source}: insecure-skip-tls-verify and certificate-authority exclude each other")
    proxy = cluster.proxy_url and checked_proxy(cluster.proxy_url, source=f"{source}: proxy-url")
    url = _checked_url(cluster.server, source)
    return Server(
        url=str(url).rstrip("/"),
        authority=authority,
        insecure=cluster.insecure_skip_tls_verify,
        name=cluster.tls_server_name,
        proxy=proxy or proxy_from_environment(url, environ),
        exec_config=_extension(cluster, "client.authentication.k8s.io/exec"),
        data=_data_folder(cluster),
    )


def _extension(cluster: ClusterEntry, name: str) -> object:
    return next((entry.extension for entry in cluster.extensions if entry.name == name), None)


def _data_folder(cluster: ClusterEntry) -> str:
    found = _extension(cluster, DATA)
    folder = found.get("folder") if isinstance(found, dict) else None
    return folder if isinstance(folder, str) else ""


def _checked_url(server: str, source: str) -> URL:
    try:
        url = URL(server)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise Misconfigured(f"{source}: its server must be written as https://HOST:PORT")
    if url.user or url.password:
        raise Misconfigured(f"{source}: its server holds a user name or password: write them under users instead")
    return url


def _user(user: UserEntry, source: str) -> User:
    if user.auth_provider is not None:
        raise Misconfigured(
            f"{source}: auth-provider is no longer a way to sign in: use an exec plugin of the provider"
        )
    if user.username and (user.token or user.token_file):
        raise Misconfigured(f"{source}: give the user a token or a password, not both")
    certificate = _material("client-certificate", user.client_certificate_data, user.client_certificate)
    key = _material("client-key", user.client_key_data, user.client_key)
    if (certificate is None) != (key is None):
        raise Misconfigured(f"{source}: client-certificate and client-key go together, and only one is there")
    if user.exec and user.exec.interactive_mode == "Always":
        raise Misconfigured(
            f"{source}: the exec plugin {user.exec.command} wants to ask a person (interactiveMode: Always), and there "
            "is none here: use a plugin or a token that needs no answer"
        )
    return User(
        token=_token(user),
        username=user.username,
        password=user.password,
        certificate=certificate,
        key=key,
        plugin=user.exec,
        impersonation=_impersonation(user, source),
    )


def _token(user: UserEntry) -> PemSource | None:
    """tokenFile wins over token: the token is only an old copy of the file's content."""
    if user.token_file:
        return PemSource(what="token", path=Path(user.token_file))
    return PemSource(what="token", data=user.token.encode()) if user.token else None


def _impersonation(user: UserEntry, source: str) -> tuple[tuple[str, str], ...]:
    headers = (
        *((("Impersonate-User", user.as_user),) if user.as_user else ()),
        *((("Impersonate-Uid", user.as_uid),) if user.as_uid else ()),
        *(("Impersonate-Group", group) for group in user.as_groups),
        *(
            (f"Impersonate-Extra-{quote(key, safe='')}", value)
            for key, values in user.as_user_extra.items()
            for value in values
        ),
    )
    if not all(value.isprintable() for _, value in headers):
        raise Misconfigured(f"{source}: whom to impersonate is not one line of text")
    return headers


def _material(what: str, data: str, path: str) -> PemSource | None:
    if data:
        return PemSource(what=what, data=decoded(data, f"{what}-data"))
    return PemSource(what=what, path=Path(path)) if path else None


def _is_in_cluster(environ: Mapping[str, str], service_account: Path) -> bool:
    return bool(
        environ.get("KUBERNETES_SERVICE_HOST")
        and environ.get("KUBERNETES_SERVICE_PORT")
        and (service_account / "token").is_file()
    )


def _from_service_account(environ: Mapping[str, str], folder: Path) -> Config:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    authority = folder / "ca.crt"
    namespace = folder / "namespace"
    return Config(
        server=Server(
            url=url,
            authority=PemSource(what="certificate-authority", path=authority) if authority.exists() else None,
            proxy=proxy_from_environment(URL(url), environ),
        ),
        user=User(token=PemSource(what="token", path=folder / "token")),
        namespace=namespace.read_text().strip() if namespace.exists() else "default",
        source=f"the pod's service account in {folder}",
    )
