"""Services: an address of their own, and ports."""

from collections.abc import Iterator
from ipaddress import IPv4Network

from holdfast.cluster.embedded.kind import KindHooks, ObjectReader
from holdfast.cluster.embedded.names import dns_1035_problems
from holdfast.cluster.embedded.refusals import bad_value, missing
from holdfast.cluster.errors import Cause, ServerError
from holdfast.cluster.protocol import JSON

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
    """What the server gave stays when a replacement does not name it."""
    for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if field in old["spec"]:
            service["spec"].setdefault(field, old["spec"][field])


def _validate_service(service: JSON, old: JSON | None) -> Iterator[Cause]:
    spec = service.get("spec", {})
    ports = spec.get("ports", [])
    if not ports and spec.get("type") != "ExternalName" and spec.get("clusterIP") != HEADLESS:
        yield missing("spec.ports")
    for index, port in enumerate(ports):
        if len(ports) > 1 and not port.get("name"):
            yield missing(f"spec.ports[{index}].name")
        if port.get("name") and port["name"] in [each.get("name") for each in ports[:index]]:
            yield Cause(f"spec.ports[{index}].name", f'Duplicate value: "{port["name"]}"', "FieldValueDuplicate")
    if old is not None and spec.get("clusterIP") != old["spec"].get("clusterIP"):
        yield bad_value("spec.clusterIPs[0]", spec.get("clusterIP", ""), "field is immutable")


# Since 1.34 a name may start with a digit, but not yet on the oldest server that we support.
SERVICES = KindHooks(
    name_problems=dns_1035_problems,
    set_defaults=_default_service,
    prepare_create=_prepare_service,
    prepare_update=_update_service,
    validate=_validate_service,
)
