"""Asking a server on the loopback address whether it is ready."""

import http.client
import ssl


def answers(port: int, path: str, *, trust: ssl.SSLContext | None = None, token: str = "") -> bool:
    """Whether a GET is answered with 200, over TLS if there is something to trust."""
    if trust is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    else:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=trust)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
