"""Which cluster, and as whom: the facts that a connection is made from."""

from holdfast.cluster.kubernetes.kubefile import ExecPlugin
from holdfast.cluster.kubernetes.material import Material
from holdfast.cluster.kubernetes.private import Private


class Server(Private, frozen=True, kw_only=True):
    """The API server: how to reach it and whom to take for it."""

    url: str
    authority: Material | None = None
    insecure: bool = False
    name: str = ""
    proxy: str = ""
    exec_config: object = None
    data: str = ""
    """The data folder of a `holdfast up`, if it is one."""


class User(Private, frozen=True, kw_only=True):
    """Who asks. At most one of token, password and plugin says so in words; a certificate may do so besides."""

    token: Material | None = None
    username: str = ""
    password: str = ""
    certificate: Material | None = None
    key: Material | None = None
    plugin: ExecPlugin | None = None
    impersonation: tuple[tuple[str, str], ...] = ()


class Config(Private, frozen=True, kw_only=True):
    """Everything that a connection needs; `source` says to people where it was found."""

    server: Server
    user: User
    namespace: str
    source: str
