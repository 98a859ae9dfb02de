"""The variables that a container's processes see: those that the pod declares, and a small base."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TypeAlias, TypeVar

from msgspec import Struct

from holdfast.api.meta import Key, Object
from holdfast.api.scalars import parse_quantity, round_up
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import Cluster, Resource
from holdfast.local.kubelet.errors import ConfigError
from holdfast.local.kubelet.objects import (
    CLAIMS,
    CONFIG_MAPS,
    SECRETS,
    ConfigMap,
    Container,
    EnvVar,
    EnvVarSource,
    FieldRef,
    KeyRef,
    Named,
    ObjectVolume,
    Pod,
    ResourceFieldRef,
    Secret,
    Volume,
)

# $(NAME) in values, commands and arguments, by Kubernetes' rules.

# Leftmost first: $$ stands for one $, $(NAME) for a variable; any other $ is itself.
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`text` with every known reference replaced; one that is not known stays as it is written."""

    def replacement(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(replacement, text)


# What a pod may be told of itself: its fields and its resources.

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


# The ConfigMaps, Secrets and claims that a pod refers to, read when they are needed and kept nowhere.

T = TypeVar("T", bound=Object)

# A token of the pod for an audience.
IssueToken: TypeAlias = Callable[[Pod, str], str]


class ReferencedObjects(Struct, frozen=True, kw_only=True):
    """Names of objects, by kind."""

    config_maps: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()
    claims: frozenset[str] = frozenset()


class Sources(Struct, frozen=True, kw_only=True):
    """Those of them that are there."""

    config_maps: Mapping[str, ConfigMap] = {}
    secrets: Mapping[str, Secret] = {}
    claims: Mapping[str, Named] = {}
    tokens: Mapping[str, str] = {}
    """By audience."""


def of_container(container: Container) -> ReferencedObjects:
    """What its environment is made of."""
    references = [variable.value_from for variable in container.env if variable.value_from]
    maps = [ref.config_map_key_ref for ref in references] + [whole.config_map_ref for whole in container.env_from]
    secrets = [ref.secret_key_ref for ref in references] + [whole.secret_ref for whole in container.env_from]
    return ReferencedObjects(
        config_maps=frozenset(ref.name for ref in maps if ref), secrets=frozenset(ref.name for ref in secrets if ref)
    )


def of_volumes(volumes: Iterable[Volume]) -> ReferencedObjects:
    config_maps, secrets, claims = set(), set(), set()
    for volume in volumes:
        config_maps |= {source.name for source in _objects(volume, "config_map")}
        secrets |= {source.secret_name or source.name for source in _objects(volume, "secret")}
        if volume.persistent_volume_claim:
            claims.add(volume.persistent_volume_claim.claim_name)
    return ReferencedObjects(config_maps=frozenset(config_maps), secrets=frozenset(secrets), claims=frozenset(claims))


def _objects(volume: Volume, kind: str) -> Iterator[ObjectVolume]:
    for holder in (volume, *(volume.projected.sources if volume.projected else ())):
        source: ObjectVolume | None = getattr(holder, kind)
        if source:
            yield source


def tokens(pod: Pod, issue: IssueToken | None) -> dict[str, str]:
    """Those that the pod's volumes hold; none where nobody issues any, since nobody could check them."""
    projections = (each for volume in pod.spec.volumes if volume.projected for each in volume.projected.sources)
    wanted = {each.service_account_token.audience for each in projections if each.service_account_token}
    return {audience: issue(pod, audience) for audience in sorted(wanted)} if issue else {}


async def fetch(cluster: Cluster, namespace: str, needs: ReferencedObjects) -> Sources:
    return Sources(
        config_maps=await _all(cluster, CONFIG_MAPS, namespace, needs.config_maps),
        secrets=await _all(cluster, SECRETS, namespace, needs.secrets),
        claims=await _all(cluster, CLAIMS, namespace, needs.claims),
    )


async def _all(cluster: Cluster, resource: Resource[T], namespace: str, names: Iterable[str]) -> dict[str, T]:
    found = {}
    for name in sorted(names):
        try:
            found[name] = await cluster.get(resource, Key(namespace, name))
        except NotFound:
            continue
    return found


# By these two, in its environment, a process is known as ours: of this data folder, and of this pod.
MACHINE = "HOLDFAST_MACHINE"
POD_UID = "HOLDFAST_POD_UID"


def base(place: PodContext, home: Path, tmp: Path) -> dict[str, str]:
    """What every process needs. Nothing else of holdfast's own environment is passed on."""
    own_path = os.environ.get("PATH", os.defpath)
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{own_path}",
        "HOME": str(home),
        "TMPDIR": str(tmp),
        "LANG": "C.UTF-8",
        "HOSTNAME": place.pod.spec.hostname or place.pod.metadata.name,
        # Gloo would look up the machine's own name, which need not resolve, and may be a network that comes and goes.
        "GLOO_SOCKET_IFNAME": "lo",
    }


class DeclaredEnv(Struct, frozen=True):
    """The pod's own variables as they are written, and which of them came out of a Secret."""

    values: dict[str, str]
    secret: frozenset[str] = frozenset()

    def put(self, entries: Mapping[str, str], *, secret: bool) -> "DeclaredEnv":
        names = self.secret | entries.keys() if secret else self.secret - entries.keys()
        return DeclaredEnv({**self.values, **entries}, frozenset(names))

    def rewritten(self, rewrite: Callable[[str], str]) -> dict[str, str]:
        """As the process gets them; a Secret is never touched."""
        return {name: value if name in self.secret else rewrite(value) for name, value in self.values.items()}


def declared(container: Container, place: PodContext, sources: Sources) -> DeclaredEnv:
    """envFrom first, then env: a later variable replaces an earlier one of its name."""
    variables = DeclaredEnv({})
    for group in container.env_from:
        is_secret = group.secret_ref is not None
        entries = _entries(group.secret_ref or group.config_map_ref, sources, secret=is_secret)
        variables = variables.put({group.prefix + key: value for key, value in entries.items()}, secret=is_secret)
    for variable in container.env:
        value = _value(variable, variables.values, container, place, sources)
        if value is not None:
            is_secret = variable.value_from is not None and variable.value_from.secret_key_ref is not None
            variables = variables.put({variable.name: value}, secret=is_secret)
    return variables


def _value(
    variable: EnvVar, earlier: Mapping[str, str], container: Container, place: PodContext, sources: Sources
) -> str | None:
    """None for what is optional and missing."""
    if variable.value_from is None:
        return expand(variable.value, earlier)
    return _referred(variable.value_from, container, place, sources)


def _referred(source: EnvVarSource, container: Container, place: PodContext, sources: Sources) -> str | None:
    if source.field_ref:
        return place.field(source.field_ref)
    if source.resource_field_ref:
        return place.resource(source.resource_field_ref, container.name)
    if source.config_map_key_ref:
        return _key("ConfigMap", source.config_map_key_ref, sources.config_maps)
    if source.secret_key_ref:
        return _key("Secret", source.secret_key_ref, sources.secrets)
    raise ConfigError("a variable's valueFrom names no source that this machine knows")


def _key(kind: str, ref: KeyRef, found: Mapping[str, ConfigMap] | Mapping[str, Secret]) -> str | None:
    holder = found.get(ref.name)
    value = holder.files.get(ref.key) if holder else None
    if value is not None:
        return os.fsdecode(value)
    if ref.optional:
        return None
    missing = f'{kind} "{ref.name}" is not there' if holder is None else f'{kind} "{ref.name}" has no key "{ref.key}"'
    raise ConfigError(f"{missing}; create it, or mark the reference optional")


def _entries(ref: KeyRef | None, sources: Sources, *, secret: bool) -> dict[str, str]:
    if ref is None:
        return {}
    holder: ConfigMap | Secret | None = (sources.secrets if secret else sources.config_maps).get(ref.name)
    if holder is None and not ref.optional:
        kind = "Secret" if secret else "ConfigMap"
        raise ConfigError(f'{kind} "{ref.name}" is not there; create it, or mark the reference optional')
    return {key: os.fsdecode(value) for key, value in holder.files.items()} if holder else {}
