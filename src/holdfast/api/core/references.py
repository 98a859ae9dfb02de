"""Names of other objects."""

from typing import Annotated

from msgspec import Meta

from holdfast.api.meta import ApiStruct
from holdfast.api.scalars import DnsLabel, DnsSubdomain


class LocalObjectReference(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[DnsSubdomain, Meta(description="Name of the object, in the same namespace.")]


class ObjectReference(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[DnsSubdomain, Meta(description="Name of the object.")]
    namespace: Annotated[
        DnsLabel,
        Meta(description="Namespace of the object; without it, the namespace of the object that refers to it."),
    ] = ""
