"""Asking a server, on the loopback address if no other is given, whether it is ready."""

import http.client
import ssl

from tests.control_plane.certificates import LOOPBACK


def answers(
    port: int, path: str, *, host: str = LOOPBACK, trust: ssl.SSLContext | None = None, token: str = ""
) -> bool:
    """Whether a GET is answered with 200, over TLS if there is something to trust."""
    if trust is None:
        connection = http.client.HTTPConnection(host, port, timeout=5)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=5, context=trust)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
