"""Is holdfast installed, and does its operator work: the API server, the CustomResourceDefinitions, the operator."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast import __version__
from holdfast.api.core.objects import Lease
from holdfast.api.kinds import KINDS
from holdfast.api.meta import Key
from holdfast.api.reports import FILE, InvalidEndpointFile, decode_endpoint
from holdfast.api.schema.crd import crd_manifest
from holdfast.cli.doctor.findings import Finding, hidden, note, ok, problem, unless_forbidden
from holdfast.cli.session import Session
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import JSON, Resource
from holdfast.cluster.resources import CONFIG_MAPS, LEASES, RawObject
from holdfast.times import parse_optional_time, short_duration

OLDEST = (1, 33)
LEASE = "holdfast-operator"
NODE_ENDPOINT = "holdfast-node-endpoint"
OPERATOR = "app.kubernetes.io/name=holdfast"
INSTALL_CRDS = "holdfast crds | kubectl apply --server-side -f -"
INSTALL_OPERATOR = "kubectl apply -k manifests/operator (docs/operations.md)"
DEFINITIONS = Resource(
    group="apiextensions.k8s.io",
    version="v1",
    kind="CustomResourceDefinition",
    plural="customresourcedefinitions",
    model=RawObject,
    namespaced=False,
)
DEPLOYMENTS = Resource(group="apps", version="v1", kind="Deployment", plural="deployments", model=RawObject)


async def cluster_findings(session: Session) -> tuple[Finding, ...]:
    version = version_finding(await session.cluster.server_version())
    return (version, *[finding async for finding in _definitions(session)])


def version_finding(version: str) -> Finding:
    numbers = re.match(r"v(\d+)\.(\d+)", version)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return problem(f"Kubernetes {version} is too old", f"holdfast needs {oldest} or newer")
    return ok(f"Kubernetes {version}")


async def _definitions(session: Session) -> AsyncIterator[Finding]:
    missing, other = [], []
    for kind in KINDS:
        try:
            found = await unless_forbidden(session.cluster.get(DEFINITIONS, Key("", str(kind))))
        except NotFound:
            missing.append(str(kind))
            continue
        if found is None:
            yield hidden("CustomResourceDefinitions", "get customresourcedefinitions.apiextensions.k8s.io")
            return
        if not contains(found.document.get("spec"), crd_manifest(kind)["spec"]):
            other.append(str(kind))
    if missing:
        yield problem(f"CustomResourceDefinitions are missing: {', '.join(missing)}", INSTALL_CRDS)
    if other:
        text = f"CustomResourceDefinitions are not those of this holdfast ({__version__}): {', '.join(other)}"
        yield problem(text, INSTALL_CRDS)
    if not missing and not other:
        yield ok(f"all {len(KINDS)} CustomResourceDefinitions are those of this holdfast ({__version__})")


def contains(found: object, wanted: object) -> bool:
    """Whether all that is wanted was found; the API server adds defaults of its own."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(contains(found.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return (
            isinstance(found, Sequence)
            and not isinstance(found, str)
            and len(found) == len(wanted)
            and all(contains(one, other) for one, other in zip(found, wanted, strict=True))
        )
    return found == wanted


async def operator_findings(session: Session) -> tuple[Finding, ...]:
    if session.data is not None:
        return (ok("the operator runs inside `holdfast up`"),)
    findings: list[Finding] = []
    deployments = await unless_forbidden(session.cluster.list(DEPLOYMENTS, labels=OPERATOR))
    leases = await unless_forbidden(session.cluster.list(LEASES, fields=f"metadata.name={LEASE}"))
    if deployments is None:
        findings.append(hidden("Deployments of the operator", "list deployments.apps in all namespaces"))
    else:
        for deployment in deployments.items:
            findings.extend(deployment_findings(deployment.metadata.key, deployment.document))
    if leases is None:
        findings.append(hidden("who leads", "list leases.coordination.k8s.io in all namespaces"))
        return tuple(findings)
    if not leases.items:
        findings.append(problem("no operator has ever led: there is no Lease", INSTALL_OPERATOR))
    for lease in leases.items:
        findings.append(lease_finding(lease, session.now()))
        findings.append(await _endpoint_finding(session, lease.metadata.namespace))
    return tuple(findings)


def deployment_findings(key: Key, document: JSON) -> list[Finding]:
    wanted = document.get("spec", {}).get("replicas", 1)
    ready = document.get("status", {}).get("readyReplicas", 0)
    text = f"Deployment {key}: {ready} of {wanted} replicas are ready"
    look = f"kubectl -n {key.namespace} describe pods -l {OPERATOR}"
    findings = [ok(text) if ready and ready >= wanted else problem(text, look)]
    pod: dict[str, Any] = document.get("spec", {}).get("template", {}).get("spec", {})
    images = [str(each.get("image", "")) for each in pod.get("containers", [])]
    other = [image for image in images if (tag := image_version(image)) and tag != __version__]
    if other:
        findings.append(note(f"Deployment {key} runs {other[0]}, and this is holdfast {__version__}"))
    return findings


def image_version(image: str) -> str:
    """The version in the tag of an image; "" where the tag is none."""
    found = re.search(r":v?(\d+\.\d+\.\d+)$", image)
    return found[1] if found is not None else ""


def lease_finding(lease: Lease, now: datetime) -> Finding:
    spec, where = lease.spec, f"Lease {lease.metadata.key}"
    if not spec.holder_identity:
        return problem(f"nobody leads: {where} was given back", "start the operator, or look at the logs of its pods")
    renewed = parse_optional_time(spec.renew_time)
    age_s = (now - renewed).total_seconds() if renewed is not None else None
    if age_s is None or age_s > (spec.lease_duration_seconds or 15):
        ago = f" {short_duration(age_s)} ago" if age_s is not None else ""
        return problem(
            f"nobody leads: {spec.holder_identity} renewed {where} last{ago}", "look at the logs of the operator's pods"
        )
    return ok(f"{spec.holder_identity} leads ({where})")


async def _endpoint_finding(session: Session, namespace: str) -> Finding:
    """Where agents and sidecars reach the leader."""
    key = Key(namespace, NODE_ENDPOINT)
    try:
        found = await unless_forbidden(session.cluster.get(CONFIG_MAPS, key))
    except NotFound:
        return problem(
            f"the leader has not published its reports endpoint (ConfigMap {key}): agents get no credentials",
            "look at the logs of the operator for why it does not write it",
        )
    if found is None:
        return hidden("the operator's reports endpoint", f"get configmaps in {namespace}")
    try:
        endpoint = decode_endpoint(found.data.get(FILE, "").encode())
    except InvalidEndpointFile as error:
        return problem(f"ConfigMap {key} can't be read: {error}", "delete it: the leader writes it again")
    return ok(f"the reports endpoint of the operator is {endpoint.url}")
