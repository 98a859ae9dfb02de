"""Objects read whole: with every field that the cluster has, where a model keeps only what it names."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from holdfast.api.meta import Object
from holdfast.cluster.protocol import JSON

S = TypeVar("S", bound=Struct)


class RawObject(Object, frozen=True, kw_only=True):
    """As the model of a resource it makes an engine keep the whole document."""

    document: JSON


def decoder_for(model: type[S]) -> Callable[[bytes | Raw], S]:
    """What turns the JSON text of an object into the model; raises a `MsgspecError` when it does not fit."""
    if model not in _readers:
        _readers[model] = _whole if model is RawObject else msgspec.json.Decoder(model).decode
    return _readers[model]


_readers: dict[type[Struct], Callable[[bytes | Raw], Any]] = {}
_head = msgspec.json.Decoder(Object)


def _whole(text: bytes | Raw) -> RawObject:
    return RawObject(metadata=_head.decode(text).metadata, document=msgspec.json.decode(text))
