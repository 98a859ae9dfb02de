"""Reading and writing objects."""

from aiohttp import web

from holdfast.api.kinds import without_controller
from holdfast.cluster.embedded.http.answers import json_response
from holdfast.cluster.embedded.http.bodies import part, read_object, read_options, read_patch, refuse_dry_run
from holdfast.cluster.embedded.http.statuses import success
from holdfast.cluster.embedded.http.tables import included, table, wants_table
from holdfast.cluster.embedded.http.targets import RequestTarget, target_of
from holdfast.cluster.embedded.http.watches import is_watch, watch
from holdfast.cluster.errors import BadRequest, NotFound
from holdfast.cluster.protocol import JSON, Propagation
from holdfast.cluster.whole import RawObject


async def list_or_watch(request: web.Request) -> web.StreamResponse:
    target = await target_of(request)
    if is_watch(request):
        return await watch(request, target)
    # A limit is not heeded: all of it comes at once, as from servers that know no pages.
    listing = await target.cluster.list(
        target.resource,
        namespace=target.key.namespace,
        labels=request.query.get("labelSelector", ""),
        fields=request.query.get("fieldSelector", ""),
    )
    documents = [each.document for each in listing.items]
    if wants_table(request):
        known = target.kind.known
        return json_response(table(known, documents, listing.resource_version, target.now(), included(request)))
    return json_response(
        {
            "kind": f"{target.resource.kind}List",
            "apiVersion": target.resource.api_version,
            "metadata": {"resourceVersion": listing.resource_version},
            "items": documents,
        }
    )


async def create(request: web.Request) -> web.Response:
    refuse_dry_run(request)
    target = await target_of(request)
    body = await read_object(request)
    made = await target.cluster.create(target.resource, body, namespace=target.key.namespace)
    return _warned(target, shown(request, target, made, status=201))


async def get(request: web.Request) -> web.Response:
    target = await target_of(request)
    return shown(request, target, await target.cluster.get(target.resource, target.key))


async def replace(request: web.Request) -> web.Response:
    refuse_dry_run(request)
    target = await target_of(request)
    body = await read_object(request)
    return _warned(target, shown(request, target, await target.cluster.replace(target.resource, target.key, body)))


async def patch(request: web.Request) -> web.Response:
    refuse_dry_run(request)
    target = await target_of(request)
    body = await read_patch(request)
    return _warned(target, shown(request, target, await target.cluster.patch(target.resource, target.key, body)))


async def delete(request: web.Request) -> web.Response:
    refuse_dry_run(request)
    target = await target_of(request)
    options = await read_options(request)
    preconditions = part(options, "preconditions")
    found = await target.cluster.get(target.resource, target.key)
    await target.cluster.delete(
        target.resource,
        target.key,
        uid=str(preconditions.get("uid") or ""),
        resource_version=str(preconditions.get("resourceVersion") or ""),
        propagation=_propagation(options.get("propagationPolicy") or request.query.get("propagationPolicy")),
        grace_period_s=_grace_s(options.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))),
    )
    return json_response(await _after_deletion(target, found))


def shown(request: web.Request, target: RequestTarget, found: RawObject, *, status: int = 200) -> web.Response:
    if not wants_table(request):
        return json_response(found.document, status=status)
    version = found.metadata.resource_version
    return json_response(
        table(target.kind.known, [found.document], version, target.now(), included(request)), status=status
    )


def _warned(target: RequestTarget, response: web.Response) -> web.Response:
    """With a warning that kubectl prints, where nothing follows from what was written."""
    if warning := without_controller(target.resource.group, target.resource.kind):
        response.headers["Warning"] = f'299 - "{warning}"'
    return response


async def _after_deletion(target: RequestTarget, found: RawObject) -> JSON:
    """The object while something still holds it, else that it is gone."""
    try:
        left = await target.cluster.get(target.resource, target.key)
    except NotFound:
        left = None
    if left is not None and left.metadata.uid == found.metadata.uid:
        return left.document
    return success(target.resource.plural, found.metadata.name, found.metadata.uid)


def _propagation(asked: object) -> Propagation:
    if asked is None:
        return Propagation.BACKGROUND
    try:
        return Propagation(str(asked))
    except ValueError:
        raise BadRequest(f"propagationPolicy: {asked} is none: use {', '.join(Propagation)}") from None


def _grace_s(asked: object) -> int | None:
    if asked is None:
        return None
    text = str(asked)
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise BadRequest(f"gracePeriodSeconds: {text[:20]} is not a number of seconds")
    return int(text)
