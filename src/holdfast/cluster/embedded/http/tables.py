"""metav1.Table: what `kubectl get` prints when the server knows the columns."""

from collections.abc import Callable, Iterable
from datetime import datetime

from aiohttp import web

from holdfast.cluster.known import KnownKind
from holdfast.cluster.protocol import JSON

WANTED = "as=Table"


def wants_table(request: web.Request) -> bool:
    return WANTED in request.headers.get("Accept", "")


def included(request: web.Request) -> Callable[[JSON], JSON | None]:
    """What goes along with each row, as the client asks for it."""
    match request.query.get("includeObject"):
        case "Object":
            return lambda document: document
        case "None":
            return lambda document: None
    return _metadata_only


def table(
    known: KnownKind, documents: Iterable[JSON], version: str, now: datetime, include: Callable[[JSON], JSON | None]
) -> JSON:
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": [
            {
                "name": column.name,
                "type": column.type,
                "format": "name" if column.name == "NAME" else "",
                "description": column.description,
                "priority": 1 if column.wide else 0,
            }
            for column in known.columns
        ],
        "rows": [
            {"cells": [column.show(document, now) for column in known.columns], "object": include(document)}
            for document in documents
        ],
    }


def _metadata_only(document: JSON) -> JSON:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": document["metadata"]}
