"""JSON that others have written: whatever it holds, reading it ends in a value or in `UnreadableJson`."""

from typing import TypeVar

import msgspec

Value = TypeVar("Value")


class UnreadableJson(Exception):
    """It is damaged, or has another form. The text may quote a part of it."""


def decode_json(content: bytes, type_: type[Value]) -> Value:
    try:
        return msgspec.json.decode(content, type=type_)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableJson(str(error)) from None
