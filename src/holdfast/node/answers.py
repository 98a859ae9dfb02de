"""Reads the answers that agents get."""

from aiohttp import ClientResponse


async def read_answer(response: ClientResponse, most: int) -> bytes:
    """The body, in however many pieces it comes; what goes beyond `most` is left out."""
    content = bytearray()
    while len(content) < most and (chunk := await response.content.read(most - len(content))):
        content += chunk
    return bytes(content)
