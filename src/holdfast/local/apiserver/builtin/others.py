"""Claims, ConfigMaps, Secrets, Deployments, Namespaces, Nodes, Leases, Events, Services and definitions."""

import re
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Iterator
from ipaddress import IPv4Network

from holdfast.api.schema.crd import Schema
from holdfast.api.schema.violations import PRESERVE, Cause
from holdfast.cluster.errors import BadRequest, ServerError
from holdfast.cluster.protocol import JSON
from holdfast.local.apiserver.admission import CLEANUP
from holdfast.local.apiserver.builtin.pods import complete_pod_spec, pod_spec_problems
from holdfast.local.apiserver.kinds import (
    METADATA_FIELDS,
    KindHooks,
    ObjectReader,
    ServedKind,
    bad_value,
    forbidden,
    missing,
    type_schema,
)
from holdfast.local.apiserver.objects import dns_1035_problems, dns_label_problems, dns_subdomain_problems

# Protects a claim that pods use; the claim controller, which watches the pods, removes it.
PROTECTION = "kubernetes.io/pvc-protection"
_ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")


def _prepare_claim(claim: JSON, _around: ObjectReader) -> None:
    metadata = claim["metadata"]
    metadata["finalizers"] = [*metadata.get("finalizers", []), PROTECTION]
    claim["status"] = {"phase": "Pending"}


def _validate_claim(claim: JSON, old: JSON | None) -> Iterator[Cause]:
    for mode in claim["spec"].get("accessModes", []):
        if mode not in _ACCESS_MODES:
            supported = ", ".join(f'"{each}"' for each in _ACCESS_MODES)
            why = f'Unsupported value: "{mode}": supported values: {supported}'
            yield Cause("spec.accessModes", why, "FieldValueNotSupported")
    if "storage" not in claim["spec"].get("resources", {}).get("requests", {}):
        yield missing("spec.resources[storage]")
    mutable = ("resources", "volumeName", "volumeAttributesClassName")
    if old is not None and _without(claim["spec"], mutable) != _without(old["spec"], mutable):
        why = "spec is immutable after creation except resources.requests and volumeAttributesClassName"
        yield forbidden("spec", why)


def _without(spec: JSON, fields: tuple[str, ...]) -> JSON:
    return {name: value for name, value in spec.items() if name not in fields}


CLAIMS = KindHooks(prepare_create=_prepare_claim, validate=_validate_claim)


# ConfigMaps and Secrets: data that pods get as files and environment variables.

MOST_BYTES = 1024 * 1024
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_KEY_PROBLEM = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' "
    "(e.g. 'key.name'), and must be neither '.' nor start with '..'"
)


def _validate_data(document: JSON, old: JSON | None) -> Iterator[Cause]:
    for field in ("data", "binaryData"):
        # Keys become file names: a key that leads out of its folder must be rejected.
        for key in document.get(field, {}):
            if not _KEY.fullmatch(key) or key == "." or key.startswith(".."):
                yield bad_value(f"{field}[{key}]", key, _KEY_PROBLEM)
    values = (value for field in ("data", "binaryData") for value in document.get(field, {}).values())
    if sum(len(value.encode()) for value in values) > MOST_BYTES:
        yield Cause("", f"Too long: may not be more than {MOST_BYTES} bytes", "FieldValueTooLong")
    if old is not None and old.get("immutable"):
        for field in ("immutable", "data", "binaryData"):
            if document.get(field) != old.get(field):
                yield forbidden(field, "field is immutable when `immutable` is set")


def _default_secret(secret: JSON) -> None:
    texts = secret.pop("stringData", {})
    if texts:
        encoded = {key: b64encode(text.encode()).decode() for key, text in texts.items()}
        secret["data"] = secret.get("data", {}) | encoded
    for key, value in secret.get("data", {}).items():
        try:
            b64decode(value, validate=True)
        except Error:
            # The message omits the value: it may be the secret itself, without its encoding.
            raise BadRequest(
                f'Secret in version "v1" cannot be handled as a Secret: data[{key}] is no base64; put plain text '
                "under stringData"
            ) from None


def _validate_secret(secret: JSON, old: JSON | None) -> Iterator[Cause]:
    yield from _validate_data(secret, old)
    if old is not None and secret.get("type") != old.get("type"):
        yield bad_value("type", secret.get("type", ""), "field is immutable")


CONFIG_MAPS = KindHooks(validate=_validate_data)
SECRETS = KindHooks(fields=KindHooks().fields | {"type"}, set_defaults=_default_secret, validate=_validate_secret)


# Deployments.

ROLLING = {"maxSurge": "25%", "maxUnavailable": "25%"}


def _default_deployment(deployment: JSON) -> None:
    spec = deployment.get("spec", {})
    complete_pod_spec(spec.get("template", {}).get("spec", {}))
    strategy = spec.get("strategy", {})
    if strategy.get("type") == "RollingUpdate":
        strategy["rollingUpdate"] = ROLLING | strategy.get("rollingUpdate", {})


def _prepare_deployment(deployment: JSON, _around: ObjectReader) -> None:
    deployment["metadata"]["generation"] = 1
    deployment["status"] = {}


def _validate_deployment(deployment: JSON, old: JSON | None) -> Iterator[Cause]:
    spec = deployment["spec"]
    template = spec["template"]
    yield from _selector_problems(spec.get("selector", {}), template.get("metadata", {}).get("labels", {}))
    yield from pod_spec_problems(template.get("spec", {}), "spec.template.spec")
    policy = template.get("spec", {}).get("restartPolicy")
    if policy != "Always":
        why = f'Unsupported value: "{policy}": supported values: "Always"'
        yield Cause("spec.template.spec.restartPolicy", why, "FieldValueNotSupported")
    if "activeDeadlineSeconds" in template.get("spec", {}):
        yield forbidden(
            "spec.template.spec.activeDeadlineSeconds", "activeDeadlineSeconds in ReplicaSet is not Supported"
        )
    strategy = spec.get("strategy", {})
    if strategy.get("type") == "Recreate" and "rollingUpdate" in strategy:
        why = "may not be specified when strategy `type` is 'Recreate'"
        yield forbidden("spec.strategy.rollingUpdate", why)
    if old is not None and spec.get("selector") != old["spec"].get("selector"):
        yield bad_value("spec.selector", spec.get("selector"), "field is immutable")


def _selector_problems(selector: JSON, labels: dict[str, str]) -> Iterator[Cause]:
    """Only matchLabels are compared with the labels; matchExpressions are accepted unchecked."""
    wanted = selector.get("matchLabels", {})
    if not wanted and not selector.get("matchExpressions"):
        yield bad_value("spec.selector", selector, "empty selector is invalid for deployment")
    elif any(labels.get(name) != value for name, value in wanted.items()):
        yield bad_value("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")


DEPLOYMENTS = KindHooks(
    counts_generations=True,
    set_defaults=_default_deployment,
    prepare_create=_prepare_deployment,
    validate=_validate_deployment,
)


# Namespaces.

NAME_LABEL = "kubernetes.io/metadata.name"
# In spec.finalizers: stands for the objects in the namespace, and is removed when they are gone.
CONTENT = "kubernetes"
UNDELETABLE = frozenset({"default", "kube-system", "kube-public"})


def _default_namespace(namespace: JSON) -> None:
    name = namespace["metadata"].get("name")
    if name:
        labels = namespace["metadata"].get("labels", {})
        namespace["metadata"]["labels"] = {**labels, NAME_LABEL: name}


def _prepare_namespace(namespace: JSON, _around: ObjectReader) -> None:
    namespace["spec"] = {"finalizers": [CONTENT]}
    namespace["status"] = {"phase": "Active"}


def _update_namespace(namespace: JSON, old: JSON) -> None:
    namespace["spec"] = old["spec"]


NAMESPACES = KindHooks(
    name_problems=dns_label_problems,
    fields=METADATA_FIELDS | {"status.phase"},
    set_defaults=_default_namespace,
    prepare_create=_prepare_namespace,
    prepare_update=_update_namespace,
)


# Kinds with few hooks: Nodes, Leases, Events.


def _default_node(node: JSON) -> None:
    status = node.get("status", {})
    if "capacity" in status:
        status.setdefault("allocatable", dict(status["capacity"]))


def _validate_event(event: JSON, _old: JSON | None) -> Iterator[Cause]:
    namespace = event.get("involvedObject", {}).get("namespace", "")
    # Events of an object without a namespace are in the default namespace.
    if namespace != event["metadata"]["namespace"] and (namespace or event["metadata"]["namespace"] != "default"):
        yield bad_value("involvedObject.namespace", namespace, "does not match event.namespace")


NODES = KindHooks(
    fields=METADATA_FIELDS | {"spec.unschedulable"}, accepts_status_on_create=True, set_defaults=_default_node
)
LEASES = KindHooks(allows_unversioned_replace=False)
EVENTS = KindHooks(
    validate=_validate_event,
    fields=METADATA_FIELDS
    | {f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion")}
    | {"involvedObject.fieldPath"}
    | {"reason", "type", "reportingComponent"},
)


# Services: a cluster IP, and ports.

ADDRESSES = IPv4Network("10.96.0.0/12")
HEADLESS = "None"


def _default_service(service: JSON) -> None:
    spec = service.get("spec", {})
    for port in spec.get("ports", []):
        if not port.get("targetPort"):
            port["targetPort"] = port.get("port")
    if spec.get("type") != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")


def _prepare_service(service: JSON, around: ObjectReader) -> None:
    spec = service["spec"]
    if spec["type"] != "ExternalName":
        address = spec.get("clusterIP") or _free_address(around)
        families = {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}
        spec |= {"clusterIP": address, "clusterIPs": [address], **families}
    service["status"] = {"loadBalancer": {}}


def _free_address(around: ObjectReader) -> str:
    taken = {each["spec"].get("clusterIP") for each in around.documents("services")}
    for _ in range(1000):
        address = str(ADDRESSES[around.rng.randrange(1, ADDRESSES.num_addresses - 1)])
        if address not in taken:
            return address
    raise ServerError("failed to allocate a service IP: the range is used up")


def _update_service(service: JSON, old: JSON) -> None:
    """Fields that the server assigned stay when a replacement omits them."""
    for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if field in old["spec"]:
            service["spec"].setdefault(field, old["spec"][field])


def _validate_service(service: JSON, old: JSON | None) -> Iterator[Cause]:
    spec = service.get("spec", {})
    ports = spec.get("ports", [])
    if spec.get("type") == "ExternalName":
        yield from _external_name_problems(spec)
    if not ports and spec.get("type") != "ExternalName" and spec.get("clusterIP") != HEADLESS:
        yield missing("spec.ports")
    for index, port in enumerate(ports):
        if len(ports) > 1 and not port.get("name"):
            yield missing(f"spec.ports[{index}].name")
        if port.get("name") and port["name"] in [each.get("name") for each in ports[:index]]:
            yield Cause(f"spec.ports[{index}].name", f'Duplicate value: "{port["name"]}"', "FieldValueDuplicate")
    if old is not None and spec.get("clusterIP") != old["spec"].get("clusterIP"):
        yield bad_value("spec.clusterIPs[0]", spec.get("clusterIP", ""), "field is immutable")


def _external_name_problems(spec: JSON) -> Iterator[Cause]:
    if spec.get("clusterIP"):
        yield Cause("spec.clusterIPs[0]", "may not be set for ExternalName services", "FieldValueForbidden")
    if not spec.get("externalName"):
        yield missing("spec.externalName")
    elif problems := dns_subdomain_problems(spec["externalName"].removesuffix(".")):
        yield bad_value("spec.externalName", spec["externalName"], "; ".join(problems))


# Since 1.34 a name may start with a digit, but not on the oldest server that holdfast supports.
SERVICES = KindHooks(
    name_problems=dns_1035_problems,
    set_defaults=_default_service,
    prepare_create=_prepare_service,
    prepare_update=_update_service,
    validate=_validate_service,
)


# CustomResourceDefinitions, and the kinds that they define.


def _default_definition(definition: JSON) -> None:
    names = definition.get("spec", {}).get("names", {})
    if "kind" in names:
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")


def _prepare_definition(definition: JSON, _around: ObjectReader) -> None:
    spec, metadata = definition["spec"], definition["metadata"]
    metadata["generation"] = 1
    metadata["finalizers"] = [*metadata.get("finalizers", []), CLEANUP]
    definition["status"] = {
        "acceptedNames": spec["names"],
        "storedVersions": [version["name"] for version in spec["versions"] if version.get("storage")],
        "conditions": [
            {
                "type": kind,
                "status": "True",
                "reason": reason,
                "message": "the kind is served",
                "lastTransitionTime": metadata["creationTimestamp"],
            }
            for kind, reason in (("NamesAccepted", "NoConflicts"), ("Established", "InitialNamesAccepted"))
        ],
    }


def _validate_definition(definition: JSON, _old: JSON | None) -> Iterator[Cause]:
    spec = definition["spec"]
    name = f"{spec['names'].get('plural')}.{spec.get('group')}"
    if definition["metadata"].get("name") != name:
        why = f'must be spec.names.plural+"."+spec.group, here {name}'
        yield bad_value("metadata.name", definition["metadata"].get("name", ""), why)
    stored = [version["name"] for version in spec.get("versions", []) if version.get("storage")]
    if len(stored) != 1:
        yield bad_value("spec.versions", stored, "must have exactly one version marked as storage version")


DEFINITIONS = KindHooks(
    counts_generations=True,
    allows_unversioned_replace=False,
    set_defaults=_default_definition,
    prepare_create=_prepare_definition,
    validate=_validate_definition,
)


def defined_kind(definition: JSON) -> ServedKind:
    """The kind that a stored definition defines."""
    spec = definition["spec"]
    versions = [version for version in spec["versions"] if version.get("served", True)]
    return ServedKind(
        group=spec["group"],
        kind=spec["names"]["kind"],
        plural=spec["names"]["plural"],
        namespaced=spec["scope"] == "Namespaced",
        schemas={version["name"]: _object_schema(version) for version in versions},
        stored_version=next(version["name"] for version in spec["versions"] if version.get("storage")),
        has_status=any("status" in version.get("subresources", {}) for version in versions),
        custom=True,
        special=KindHooks(
            fields=METADATA_FIELDS | _selectable(versions), counts_generations=True, allows_unversioned_replace=False
        ),
    )


def _object_schema(version: JSON) -> Schema:
    schema: Schema = version.get("schema", {}).get("openAPIV3Schema", {"type": "object", PRESERVE: True})
    common = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": type_schema("ObjectMeta")}
    return {**schema, "properties": {**schema.get("properties", {}), **common}}


def _selectable(versions: list[JSON]) -> frozenset[str]:
    fields = (field["jsonPath"] for version in versions for field in version.get("selectableFields", []))
    return frozenset(path.removeprefix(".") for path in fields)
