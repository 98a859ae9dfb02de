"""Whether something answers at an address: a connection is opened and closed, and nothing is sent."""

import asyncio
import errno
import ipaddress
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal, TypeAlias

# host (an IP address) and port
Address: TypeAlias = tuple[str, int]
# accepted: somebody, at least the machine's kernel, took the connection. refused: the machine is there, and the program
# is not. unreachable: no answer of any kind. failed: this process could not even try.
Answer: TypeAlias = Literal["accepted", "refused", "unreachable", "failed"]
Connect: TypeAlias = Callable[[Address], Awaitable[Answer]]

# One lost packet must not look like a dead machine: the kernel sends the first again after one second.
CONNECT_S, ATTEMPTS = 2.0, 2
# Of the event loop, in which an answer is taken in that has come before the time was over.
TURNS = 20
NO_ANSWER = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def try_connect(address: Address) -> Answer:
    """The answer of the last attempt; nothing is tried again after an answer."""
    for _ in range(ATTEMPTS):
        try:
            writer = await _open_connection(address)
        except (ConnectionRefusedError, ConnectionResetError):
            return "refused"
        except OSError as error:
            if not isinstance(error, TimeoutError) and error.errno not in NO_ANSWER:
                return "failed"
            continue
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return "accepted"
    return "unreachable"


async def _open_connection(address: Address) -> asyncio.StreamWriter:
    """Of a process that stood still, the timer ends together with the answer; the answer counts."""
    opening = asyncio.create_task(asyncio.open_connection(*address))
    try:
        await asyncio.wait((opening,), timeout=CONNECT_S)
        for _ in range(TURNS):
            if opening.done():
                return opening.result()[1]
            await asyncio.sleep(0)
        raise TimeoutError
    finally:
        opening.cancel()
