"""How a server is reached and recognized, and the one line that says why it was not."""

import asyncio
import base64
import shutil
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import Unreachable
from holdfast.cluster.kubernetes.kubeconfig import Config
from holdfast.cluster.kubernetes.transport import Timeouts, keepalive_socket
from tests.control_plane.certificates import Authority

from .conftest import client, config_for
from .faulty import FaultyServer, answer
from .kinds import CONFIG_MAPS, config_map
from .listening import listening
from .tunnel import Tunnel

FOUND = answer(200, config_map("x"))


def serving(authority: Authority, *, clients: bool = False, name: str = "serving") -> ssl.SSLContext:
    """A server's side of TLS; with `clients` it lets nobody in without a certificate of the same authority."""
    pair = authority.server(name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    if clients:
        context.load_verify_locations(authority.file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def another(folder: Path, now: datetime | None = None) -> Authority:
    folder.mkdir()
    return Authority(folder, now or datetime.now(UTC))


async def reach(config: Config, timeouts: Timeouts | None = None) -> None:
    async with client(config, timeouts=timeouts) as cluster:
        await cluster.get(CONFIG_MAPS, Key("ml", "x"))


async def complaint(config: Config, timeouts: Timeouts | None = None) -> str:
    """The line for people: exactly one."""
    with pytest.raises(Unreachable) as caught:
        await reach(config, timeouts)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("get configmaps ml/x: ")
    return line


class TestTrust:
    @pytest.mark.parametrize("inline", [False, True])
    async def test_a_server_of_the_named_authority_is_trusted(
        self, authority: Authority, tmp_path: Path, inline: bool
    ) -> None:
        server = FaultyServer(FOUND)
        data = base64.b64encode(authority.file.read_bytes()).decode()
        how: dict[str, Any] = (
            {"certificate_authority_data": data} if inline else {"certificate_authority": str(authority.file)}
        )
        async with server.running(tls=serving(authority)) as url:
            await reach(config_for(tmp_path, url, **how))
        assert len(server.requests) == 1

    async def test_a_server_of_another_authority_is_not(self, authority: Authority, tmp_path: Path) -> None:
        server = FaultyServer()
        other = another(tmp_path / "other")
        async with server.running(tls=serving(authority)) as url:
            config = config_for(tmp_path, url, {"token": "s3cret"}, certificate_authority=str(other.file))
            line = await complaint(config)
        assert f"the certificate of {url} is not trusted" in line
        assert "set certificate-authority in" in line
        assert server.requests == []

    async def test_without_an_authority_the_system_s_are_asked(self, authority: Authority, tmp_path: Path) -> None:
        async with FaultyServer().running(tls=serving(authority)) as url:
            assert "is not trusted" in await complaint(config_for(tmp_path, url))

    async def test_a_certificate_for_another_name_says_what_to_set(self, authority: Authority, tmp_path: Path) -> None:
        async with FaultyServer().running(tls=serving(authority), host="127.0.0.2") as url:
            line = await complaint(config_for(tmp_path, url, certificate_authority=str(authority.file)))
        assert f"the certificate of {url} is made out to another name" in line
        assert "tls-server-name" in line

    async def test_the_name_to_expect_can_be_set(self, authority: Authority, tmp_path: Path) -> None:
        server = FaultyServer(FOUND)
        async with server.running(tls=serving(authority), host="127.0.0.2") as url:
            config = config_for(tmp_path, url, certificate_authority=str(authority.file), tls_server_name="localhost")
            await reach(config)
        assert len(server.requests) == 1

    async def test_an_expired_certificate_is_called_so(self, tmp_path: Path) -> None:
        old = another(tmp_path / "old", datetime.now(UTC) - timedelta(days=30))
        async with FaultyServer().running(tls=serving(old)) as url:
            line = await complaint(config_for(tmp_path, url, certificate_authority=str(old.file)))
        assert "has expired" in line
        assert "this machine's clock" in line

    async def test_checks_can_be_turned_off(self, authority: Authority, tmp_path: Path) -> None:
        server = FaultyServer(FOUND)
        async with server.running(tls=serving(authority), host="127.0.0.2") as url:
            await reach(config_for(tmp_path, url, insecure_skip_tls_verify=True))
        assert len(server.requests) == 1

    async def test_a_replaced_authority_is_trusted_from_the_next_request_on(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        path = tmp_path / "ca.crt"
        shutil.copy(another(tmp_path / "other").file, path)
        server = FaultyServer(FOUND)
        async with (
            server.running(tls=serving(authority)) as url,
            client(config_for(tmp_path, url, certificate_authority=str(path))) as cluster,
        ):
            with pytest.raises(Unreachable, match="not trusted"):
                await cluster.get(CONFIG_MAPS, Key("ml", "x"))
            shutil.copy(authority.file, path)
            with pytest.raises(Unreachable, match="not trusted"):  # it was looked at a moment ago
                await cluster.get(CONFIG_MAPS, Key("ml", "x"))
            await cluster.get(CONFIG_MAPS, Key("ml", "x"))
        assert len(server.requests) == 1


class TestClientCertificates:
    def user(self, authority: Authority, name: str = "me") -> dict[str, Any]:
        pair = authority.user(name)
        return {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}

    async def test_a_client_certificate_gives_access(self, authority: Authority, tmp_path: Path) -> None:
        server = FaultyServer(FOUND)
        async with server.running(tls=serving(authority, clients=True)) as url:
            await reach(config_for(tmp_path, url, self.user(authority), certificate_authority=str(authority.file)))
        assert len(server.requests) == 1

    async def test_inline_data_does_so_too(self, authority: Authority, tmp_path: Path) -> None:
        pair = authority.user("me")
        user = {
            "client-certificate-data": base64.b64encode(pair.certificate.read_bytes()).decode(),
            "client-key-data": base64.b64encode(pair.key.read_bytes()).decode(),
        }
        server = FaultyServer(FOUND)
        async with server.running(tls=serving(authority, clients=True)) as url:
            await reach(config_for(tmp_path, url, user, certificate_authority=str(authority.file)))
        assert len(server.requests) == 1

    async def test_none_leaves_it_shut(self, authority: Authority, tmp_path: Path) -> None:
        server = FaultyServer(FOUND)
        async with server.running(tls=serving(authority, clients=True)) as url:
            await complaint(config_for(tmp_path, url, certificate_authority=str(authority.file)))
        assert server.requests == []

    async def test_a_replaced_one_is_used_after_a_refusal(self, authority: Authority, tmp_path: Path) -> None:
        user = self.user(authority)
        server = FaultyServer(FOUND, answer(401), FOUND)
        async with (
            server.running(tls=serving(authority, clients=True)) as url,
            client(config_for(tmp_path, url, user, certificate_authority=str(authority.file))) as cluster,
        ):
            await cluster.get(CONFIG_MAPS, Key("ml", "x"))
            newer = self.user(authority, "newer")
            for name, path in newer.items():
                shutil.copy(path, user[name])
            await cluster.get(CONFIG_MAPS, Key("ml", "x"))
        # Over another connection: the old one would go on showing the old certificate.
        assert [request.connection for request in server.requests] == [1, 1, 2]


class TestProxies:
    @pytest.mark.parametrize("encrypted", [False, True])
    async def test_a_proxy_leads_to_the_server(self, authority: Authority, tmp_path: Path, encrypted: bool) -> None:
        server, tunnel = FaultyServer(FOUND), Tunnel()
        proxy_tls = serving(authority, name="proxy") if encrypted else None
        async with server.running(tls=serving(authority)) as url, tunnel.running(proxy_tls) as proxy:
            await reach(
                config_for(
                    tmp_path, url, {"token": "s3cret"}, certificate_authority=str(authority.file), proxy_url=proxy
                )
            )
        assert tunnel.targets == [url.removeprefix("https://")]
        assert len(server.requests) == 1
        assert "s3cret" not in tunnel.heads[0]

    async def test_the_password_goes_to_the_proxy_alone(self, authority: Authority, tmp_path: Path) -> None:
        server, tunnel = FaultyServer(FOUND), Tunnel()
        async with server.running(tls=serving(authority)) as url, tunnel.running() as proxy:
            proxy = proxy.replace("http://", "http://me:hunter2@")
            await reach(config_for(tmp_path, url, certificate_authority=str(authority.file), proxy_url=proxy))
        assert "Proxy-Authorization: Basic bWU6aHVudGVyMg==" in tunnel.heads[0]
        assert server.requests[0].header("Proxy-Authorization") == ""

    async def test_a_proxy_that_refuses_is_named_without_its_password(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        tunnel = Tunnel(407)
        async with FaultyServer().running(tls=serving(authority)) as url, tunnel.running():
            line = await complaint(config_for(tmp_path, url, proxy_url=f"http://me:hunter2@{tunnel.address}"))
        assert f"the proxy http://{tunnel.address} answered 407 when asked for {url}" in line
        assert "hunter2" not in line

    async def test_a_proxy_that_is_not_there_is_named_without_its_password(
        self, tmp_path: Path, unused_tcp_port: int
    ) -> None:
        proxy = f"http://me:hunter2@127.0.0.1:{unused_tcp_port}"
        line = await complaint(config_for(tmp_path, "https://api.invalid", proxy_url=proxy))
        assert f"cannot reach the proxy http://127.0.0.1:{unused_tcp_port} (Connection refused)" in line
        assert "hunter2" not in line


def test_a_socket_asks_whether_the_other_side_is_still_there() -> None:
    with keepalive_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle_s = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        between_s = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        assert idle_s + between_s * made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) <= 60


async def test_a_watch_that_is_left_is_gone_at_once_also_where_the_server_says_no_goodbye(
    authority: Authority, tmp_path: Path
) -> None:
    """Over TLS a client that is polite waits for half a minute."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            """Begins to answer, and then hears what comes without understanding it, until the line is cut."""
            accepted, _ = listener.accept()
            speaking = serving(authority).wrap_socket(accepted, server_side=True)
            speaking.recv(2**16)
            speaking.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            with socket.socket(fileno=speaking.detach()) as raw, suppress(ConnectionResetError):
                raw.settimeout(10.0)
                while raw.recv(2**16):
                    pass

        served = loop.run_in_executor(None, serve)
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        config = config_for(tmp_path, url, certificate_authority=str(authority.file))
        async with client(config) as cluster:
            async with cluster.watch(CONFIG_MAPS, resource_version="1"):
                pass
            await served


class TestOutages:
    async def test_a_server_where_nobody_listens_is_named(self, tmp_path: Path, unused_tcp_port: int) -> None:
        url = f"https://127.0.0.1:{unused_tcp_port}"
        line = await complaint(config_for(tmp_path, url))
        assert f"cannot reach {url} (Connection refused)" in line
        assert "is the API server running" in line
        assert f"{tmp_path}/kubeconfig, context 'test'" in line

    async def test_a_name_that_nobody_has(self, tmp_path: Path) -> None:
        line = await complaint(config_for(tmp_path, "https://nowhere.invalid:6443"))
        assert "cannot find the host of https://nowhere.invalid:6443" in line

    async def test_https_spoken_to_a_server_of_http(self, tmp_path: Path) -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1000)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await reader.read()

        async with listening(refuse) as address:
            line = await complaint(config_for(tmp_path, f"https://{address}"))
        assert "is https right for the server" in line

    async def test_a_server_that_never_finishes_the_greeting(self, tmp_path: Path) -> None:
        async with FaultyServer().running() as url:
            config = config_for(tmp_path, url.replace("http://", "https://"))
            line = await complaint(config, timeouts=Timeouts(connect_s=0.1))
        assert "no connection in time" in line

    async def test_http_spoken_to_a_server_of_https(self, authority: Authority, tmp_path: Path) -> None:
        async with FaultyServer().running(tls=serving(authority)) as url:
            await complaint(config_for(tmp_path, url.replace("https://", "http://")))
