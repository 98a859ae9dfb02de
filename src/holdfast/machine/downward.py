"""What a pod may be told of itself: its fields and its resources."""

import re
from collections.abc import Mapping
from fractions import Fraction

from msgspec import Struct

from holdfast.api.quantities import parse_quantity, round_up
from holdfast.machine.objects import FieldRef, Pod, ResourceFieldRef
from holdfast.machine.trouble import ConfigError

_MAP_ENTRY = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


class PodContext(Struct, frozen=True, kw_only=True):
    """A pod, and where it runs."""

    pod: Pod
    pod_ip: str
    host_ip: str
    allocatable: Mapping[str, str]

    def field(self, ref: FieldRef) -> str:
        """The text of a field, as fieldRef names it."""
        metadata, spec = self.pod.metadata, self.pod.spec
        if match := _MAP_ENTRY.fullmatch(ref.field_path):
            entries = metadata.labels if match[1] == "labels" else metadata.annotations
            return entries.get(match[2], "")
        fields = {
            "metadata.name": metadata.name,
            "metadata.namespace": metadata.namespace,
            "metadata.uid": metadata.uid,
            "metadata.labels": _lines(metadata.labels),
            "metadata.annotations": _lines(metadata.annotations),
            "spec.nodeName": spec.node_name,
            "spec.serviceAccountName": spec.service_account_name,
            "status.podIP": self.pod_ip,
            "status.podIPs": self.pod_ip,
            "status.hostIP": self.host_ip,
            "status.hostIPs": self.host_ip,
        }
        if ref.field_path not in fields:
            raise ConfigError(f"fieldRef {ref.field_path} is not one of {', '.join(fields)}")
        return fields[ref.field_path]

    def resource(self, ref: ResourceFieldRef, container_name: str) -> str:
        """A request or limit in units of the divisor, rounded up; without a limit, what the machine has."""
        name = ref.container_name or container_name
        containers = (*self.pod.spec.init_containers, *self.pod.spec.containers)
        container = next((one for one in containers if one.name == name), None)
        if container is None:
            raise ConfigError(f"resourceFieldRef names the container {name}, which is not in the pod")
        kind, _, resource = ref.resource.partition(".")
        limit = container.resources.limits.get(resource, self.allocatable.get(resource, "0"))
        value = limit if kind == "limits" else container.resources.requests.get(resource, "0")
        divisor = parse_quantity(ref.divisor or 1) or Fraction(1)
        return str(round_up(parse_quantity(value) / divisor))


def _lines(entries: Mapping[str, str]) -> str:
    """As the downward API writes a map into a file."""
    quoted = ((key, value.replace("\\", "\\\\").replace('"', '\\"')) for key, value in sorted(entries.items()))
    return "\n".join(f'{key}="{value}"' for key, value in quoted)
