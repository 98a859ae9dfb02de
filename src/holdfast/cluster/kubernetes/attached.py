"""A command that runs in a container, with its input and output, over one WebSocket."""

import aiohttp
import msgspec

from holdfast.cluster.errors import ServerError, Unreachable

# Kubernetes' own subprotocols: the first byte of every message says which stream it belongs to.
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, ERROR = b"\0", b"\1", b"\2", b"\3"
HEARTBEAT_S = 30.0
LAST_WORDS = 2000


# aiohttp does not keep what the server says of a conversation that it refuses.
_REFUSED = {403: "it takes the right to create and get pods/exec", 404: "there is no such pod"}


class _Status(msgspec.Struct, frozen=True):
    """How the command has ended, as metav1.Status."""

    status: str = ""
    message: str = ""


class ExecStream:
    """`tried` begins every error about it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, tried: str) -> None:
        self._socket = socket
        self._tried = tried
        self._said = b""

    async def write(self, content: bytes) -> None:
        try:
            await self._socket.send_bytes(STDIN + content)
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{self._tried}: the connection broke ({type(error).__name__})") from None

    async def read(self) -> bytes:
        """The next piece of what the command writes; empty once it has ended well."""
        while True:
            message = await self._socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise Unreachable(f"{self._tried}: the connection broke before the command had ended")
            channel, content = message.data[:1], bytes(message.data[1:])
            if channel == STDOUT and content:
                return content
            if channel == STDERR:
                self._said = (self._said + content)[-LAST_WORDS:]
            elif channel == ERROR:
                self._ended(content)
                return b""

    def _ended(self, content: bytes) -> None:
        try:
            status = msgspec.json.decode(content, type=_Status)
        except msgspec.MsgspecError:
            status = _Status(message="the server did not say how it ended")
        if status.status != "Success":
            said = " ".join(self._said.decode(errors="replace").split())
            raise ServerError(f"{self._tried}: {status.message}{f': {said}' if said else ''}")


def refused(code: int) -> bytes:
    """The body that a refusal of that code would have."""
    message = _REFUSED.get(code, f"the server answered {code} instead of beginning a conversation")
    return msgspec.json.encode({"kind": "Status", "message": message})
