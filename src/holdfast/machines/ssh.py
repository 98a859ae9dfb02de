"""Logs in to a machine whose host key is known, and runs commands there."""

import logging
from collections.abc import Sequence
from contextlib import suppress

import asyncssh
from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.machines.kubeadm import last_lines

# Of each login it tells a dozen lines, with the whole command.
asyncssh.set_log_level(logging.WARNING)

KEEPALIVE_S = 15.0
KEPT_OUTPUT = 16_384
CHUNK = 4096


class Login(Struct, frozen=True, kw_only=True):
    """As whom, and where. The key is never printed."""

    user: str
    key: asyncssh.SSHKey
    addresses: tuple[str, ...]
    port: int

    def __repr__(self) -> str:
        return f"Login({self})"

    def __str__(self) -> str:
        return f"{self.user}@{' or '.join(self.addresses)} port {self.port}"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("user", self.user), ("addresses", self.addresses)]


class LoginFailed(HoldfastError):
    """Nobody answered, or not the machine whose host key is known, or it does not take the key of the login."""

    def __init__(self, message: str, *, is_other_host: bool = False) -> None:
        super().__init__(message)
        self.is_other_host = is_other_host


class ConnectionBroke(HoldfastError):
    """The connection ended before the command did."""


class Output:
    """The end of what a command has printed; it may be asked while the command runs."""

    text = ""

    def append(self, text: str) -> None:
        self.text = (self.text + text)[-KEPT_OUTPUT:]


def parse_host_keys(lines: Sequence[str]) -> list[asyncssh.SSHKey]:
    """Those that can be used; the machine may tell others as well."""
    keys = []
    for line in lines:
        try:
            keys.append(asyncssh.import_public_key(line))
        except asyncssh.KeyImportError:
            continue
    return keys


async def log_in(login: Login, host_keys: list[asyncssh.SSHKey], *, connect_s: float) -> asyncssh.SSHClientConnection:
    """At the first address that lets us in. Raises `LoginFailed` with what each address said."""
    failures: list[LoginFailed] = []
    for address in login.addresses:
        try:
            return await asyncssh.connect(
                address,
                login.port,
                config=None,  # nothing of the settings, keys and agents of whoever runs the operator
                agent_path=None,
                username=login.user,
                client_keys=[login.key],
                preferred_auth="publickey",
                known_hosts=(host_keys, [], []),
                connect_timeout=connect_s,
                login_timeout=connect_s,
                keepalive_interval=KEEPALIVE_S,
            )
        except (OSError, asyncssh.Error) as error:
            failures.append(_login_failed(error, login, address))
    raise LoginFailed(
        "; ".join(map(str, failures)) or "the machine has no address",
        is_other_host=any(each.is_other_host for each in failures),
    )


async def run(connection: asyncssh.SSHClientConnection, command: str, output: Output, *, text: str = "") -> int:
    """Run a command with `text` on its standard input, and return its exit status; stderr is output, too."""
    # Not as a context: that waits for the other side's word, also when the wait is cancelled.
    try:
        process = await connection.create_process(command, stderr=asyncssh.STDOUT, encoding="utf-8", errors="replace")
        with suppress(BrokenPipeError):  # a command that has ended already, without reading
            process.stdin.write(text)
            process.stdin.write_eof()
        while chunk := await process.stdout.read(CHUNK):
            output.append(chunk)
        await process.wait_closed()
    except (OSError, asyncssh.Error) as error:
        raise ConnectionBroke(f"the connection broke: {_said(error)}") from None
    status = process.exit_status
    if status is None:
        raise ConnectionBroke("the connection broke")
    return status


async def hang_up(connection: asyncssh.SSHClientConnection) -> None:
    """At once: a machine that is gone would not answer to a farewell."""
    connection.abort()
    await connection.wait_closed()


def _login_failed(error: OSError | asyncssh.Error, login: Login, address: str) -> LoginFailed:
    where = f"{address} port {login.port}"
    if isinstance(error, TimeoutError):
        return LoginFailed(f"{where} does not answer: does a firewall rule let the operator in?")
    if isinstance(error, OSError):
        return LoginFailed(f"{where}: {error.strerror or error}")
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return LoginFailed(
            f"{where} shows another host key than the machine has told the cloud: nobody logs in there",
            is_other_host=True,
        )
    if isinstance(error, asyncssh.KeyExchangeFailed):
        # Only the types of the known keys are offered, so that a host without any of them ends here as well.
        return LoginFailed(f"{where} and the operator agree on no key: {_said(error)}", is_other_host=True)
    if isinstance(error, asyncssh.PermissionDenied):
        return LoginFailed(f"{where} does not take the key of user {login.user}: does the image read ssh-keys?")
    return LoginFailed(f"{where}: {_said(error)}")


def _said(error: OSError | asyncssh.Error) -> str:
    """What the other side has said stands in such errors."""
    return last_lines(str(error)) or type(error).__name__
