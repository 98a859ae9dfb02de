"""The proxy for a server, by the environment variables that kubectl uses."""

from collections.abc import Mapping
from ipaddress import ip_address, ip_network

from yarl import URL

from holdfast.cluster.errors import Misconfigured

_DEFAULT_PORTS = {"http": 80, "https": 443}


def proxy_from_environment(server: URL, environ: Mapping[str, str]) -> str:
    """The address of the proxy; "" for a direct connection."""
    name = "HTTPS_PROXY" if server.scheme == "https" else "HTTP_PROXY"
    proxy = environ.get(name) or environ.get(name.lower()) or ""
    if not proxy or _is_excepted(server, environ.get("NO_PROXY") or environ.get("no_proxy") or ""):
        return ""
    return checked_proxy(proxy if "://" in proxy else f"http://{proxy}", source=name)


def checked_proxy(proxy: str, *, source: str) -> str:
    """The address unchanged; raises for an unsupported proxy. Errors omit the address: it may contain a password."""
    try:
        url = URL(proxy)
    except ValueError:
        raise Misconfigured(f"{source}: not the address of a proxy: write http://HOST:PORT") from None
    if url.scheme not in _DEFAULT_PORTS or not url.host:
        kind = url.scheme or "no scheme"
        raise Misconfigured(f"{source}: a proxy of kind {kind!r} is not supported: use an http:// or https:// proxy")
    return proxy


def _is_excepted(server: URL, no_proxy: str) -> bool:
    host = (server.host or "").rstrip(".").lower()
    if host == "localhost" or _is_loopback(host):
        return True
    entries = (entry.strip().lower() for entry in no_proxy.split(","))
    return any(_covers(entry, host, server.port or 0) for entry in entries if entry)


def _covers(entry: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY covers the server: `*`, a network, or an address or domain with optional port."""
    if entry == "*":
        return True
    if "/" in entry:
        return _is_within(host, entry)
    name, entry_port = _split_port(entry)
    if entry_port and entry_port != str(port):
        return False
    name = name.removeprefix("*")
    if name.startswith("."):
        return host.endswith(name)
    return host == name or host.endswith(f".{name}")


def _split_port(entry: str) -> tuple[str, str]:
    if entry.startswith("["):
        name, _, port = entry[1:].partition("]")
        return name, port.removeprefix(":")
    if entry.count(":") == 1:
        name, _, port = entry.partition(":")
        return name, port
    return entry, ""


def _is_within(host: str, network: str) -> bool:
    try:
        return ip_address(host) in ip_network(network, strict=False)
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
