"""Which cluster, and as whom: the facts that a connection is made from."""

from holdfast.cluster.kubernetes.kubefile import ExecPlugin
from holdfast.cluster.kubernetes.material import PemSource
from holdfast.cluster.kubernetes.private import RedactedStruct


class Server(RedactedStruct, frozen=True, kw_only=True):
    """The API server: how to reach it and whom to take for it."""

    url: str
    authority: PemSource | None = None
    insecure: bool = False
    name: str = ""
    proxy: str = ""
    exec_config: object = None
    data: str = ""
    """The data folder of a `holdfast up`, if it is one."""


class User(RedactedStruct, frozen=True, kw_only=True):
    """Who asks. At most one of token, password and plugin says so in words; a certificate may do so besides."""

    token: PemSource | None = None
    username: str = ""
    password: str = ""
    certificate: PemSource | None = None
    key: PemSource | None = None
    plugin: ExecPlugin | None = None
    impersonation: tuple[tuple[str, str], ...] = ()


class Config(RedactedStruct, frozen=True, kw_only=True):
    """Everything that a connection needs; `source` says to people where it was found."""

    server: Server
    user: User
    namespace: str
    source: str
