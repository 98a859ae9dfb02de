"""The environment variables of a container: the variables of the pod spec, and a small base."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TypeAlias, TypeVar

from msgspec import Struct

from holdfast.api.core.objects import ConfigMap, PersistentVolumeClaim, Secret
from holdfast.api.meta import Key, Object
from holdfast.api.scalars import parse_quantity, round_up
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import Cluster, Resource
from holdfast.cluster.resources import CLAIMS, CONFIG_MAPS, SECRETS
from holdfast.local.kubelet.objects import (
    ConfigError,
    EnvVar,
    EnvVarSource,
    FieldRef,
    KeyRef,
    MountableVolume,
    ObjectVolume,
    ResourceFieldRef,
    RunnableContainer,
    RunnablePod,
)

# $(NAME) in values, commands and arguments, by the rules of Kubernetes. Leftmost first: $$ stands for one $, $(NAME)
# for a variable; any other $ stays.
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`text` with every known reference replaced; an unknown reference stays as written."""

    def replacement(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(replacement, text)


# The downward API: fields and resources of a pod.

_MAP_ENTRY = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


class PodContext(Struct, frozen=True, kw_only=True):
    """A pod, its addresses, and the allocatable resources of its node."""

    pod: RunnablePod
    pod_ip: str
    host_ip: str
    allocatable: Mapping[str, str]

    def field(self, ref: FieldRef) -> str:
        """The value of a fieldRef."""
        metadata, spec = self.pod.metadata, self.pod.spec
        if match := _MAP_ENTRY.fullmatch(ref.field_path):
            entries = metadata.labels if match[1] == "labels" else metadata.annotations
            return entries.get(match[2], "")
        fields = {
            "metadata.name": metadata.name,
            "metadata.namespace": metadata.namespace,
            "metadata.uid": metadata.uid,
            "metadata.labels": _map_lines(metadata.labels),
            "metadata.annotations": _map_lines(metadata.annotations),
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
        """A request or limit in units of the divisor, rounded up; a missing limit is the allocatable amount."""
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


def _map_lines(entries: Mapping[str, str]) -> str:
    """A map in the file format of the downward API."""
    quoted = ((key, value.replace("\\", "\\\\").replace('"', '\\"')) for key, value in sorted(entries.items()))
    return "\n".join(f'{key}="{value}"' for key, value in quoted)


# The ConfigMaps, Secrets and claims that a pod refers to, read on demand and never cached.

T = TypeVar("T", bound=Object)

# Issues a token of the pod for an audience.
IssueToken: TypeAlias = Callable[[RunnablePod, str], str]


class ReferencedObjects(Struct, frozen=True, kw_only=True):
    """Names of objects, by kind."""

    config_maps: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()
    claims: frozenset[str] = frozenset()


class Sources(Struct, frozen=True, kw_only=True):
    """The referenced objects that exist, by name."""

    config_maps: Mapping[str, ConfigMap] = {}
    secrets: Mapping[str, Secret] = {}
    claims: Mapping[str, PersistentVolumeClaim] = {}
    tokens: Mapping[str, str] = {}
    """By audience."""


def of_container(container: RunnableContainer) -> ReferencedObjects:
    """The objects that the environment of a container refers to."""
    references = [variable.value_from for variable in container.env if variable.value_from]
    maps = [ref.config_map_key_ref for ref in references] + [env_from.config_map_ref for env_from in container.env_from]
    secrets = [ref.secret_key_ref for ref in references] + [env_from.secret_ref for env_from in container.env_from]
    return ReferencedObjects(
        config_maps=frozenset(ref.name for ref in maps if ref), secrets=frozenset(ref.name for ref in secrets if ref)
    )


def of_volumes(volumes: Iterable[MountableVolume]) -> ReferencedObjects:
    config_maps, secrets, claims = set(), set(), set()
    for volume in volumes:
        config_maps |= {source.name for source in _objects(volume, "config_map")}
        secrets |= {source.secret_name or source.name for source in _objects(volume, "secret")}
        if volume.persistent_volume_claim:
            claims.add(volume.persistent_volume_claim.claim_name)
    return ReferencedObjects(config_maps=frozenset(config_maps), secrets=frozenset(secrets), claims=frozenset(claims))


def _objects(volume: MountableVolume, kind: str) -> Iterator[ObjectVolume]:
    for holder in (volume, *(volume.projected.sources if volume.projected else ())):
        source: ObjectVolume | None = getattr(holder, kind)
        if source:
            yield source


def tokens(pod: RunnablePod, issue: IssueToken | None) -> dict[str, str]:
    """The tokens of the pod's volumes by audience; none without an issuer, since nobody could verify them."""
    projections = (each for volume in pod.spec.volumes if volume.projected for each in volume.projected.sources)
    audiences = {each.service_account_token.audience for each in projections if each.service_account_token}
    return {audience: issue(pod, audience) for audience in sorted(audiences)} if issue else {}


async def fetch(cluster: Cluster, namespace: str, needs: ReferencedObjects) -> Sources:
    return Sources(
        config_maps=await _get_all(cluster, CONFIG_MAPS, namespace, needs.config_maps),
        secrets=await _get_all(cluster, SECRETS, namespace, needs.secrets),
        claims=await _get_all(cluster, CLAIMS, namespace, needs.claims),
    )


async def _get_all(cluster: Cluster, resource: Resource[T], namespace: str, names: Iterable[str]) -> dict[str, T]:
    found = {}
    for name in sorted(names):
        try:
            found[name] = await cluster.get(resource, Key(namespace, name))
        except NotFound:
            continue
    return found


# These variables mark a process as ours: by data folder and by pod.
NODE_ID = "HOLDFAST_MACHINE"
POD_UID = "HOLDFAST_POD_UID"


def base(context: PodContext, home: Path, tmp: Path) -> dict[str, str]:
    """The variables that every process needs. Nothing else of holdfast's own environment is passed on."""
    own_path = os.environ.get("PATH", os.defpath)
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{own_path}",
        "HOME": str(home),
        "TMPDIR": str(tmp),
        "LANG": "C.UTF-8",
        "HOSTNAME": context.pod.spec.hostname or context.pod.metadata.name,
        # Gloo would resolve the host name, which may not resolve, or may resolve to a network that comes and goes.
        "GLOO_SOCKET_IFNAME": "lo",
    }


class DeclaredEnv(Struct, frozen=True):
    """The variables of the pod spec before rewriting, and the names of those with values from a Secret."""

    values: dict[str, str]
    secret: frozenset[str] = frozenset()

    def put(self, entries: Mapping[str, str], *, secret: bool) -> "DeclaredEnv":
        names = self.secret | entries.keys() if secret else self.secret - entries.keys()
        return DeclaredEnv({**self.values, **entries}, frozenset(names))

    def rewritten(self, rewrite: Callable[[str], str]) -> dict[str, str]:
        """The values that the process gets; values from a Secret are never rewritten."""
        return {name: value if name in self.secret else rewrite(value) for name, value in self.values.items()}


def declared(container: RunnableContainer, context: PodContext, sources: Sources) -> DeclaredEnv:
    """envFrom first, then env: a later variable replaces an earlier variable of the same name."""
    variables = DeclaredEnv({})
    for group in container.env_from:
        is_secret = group.secret_ref is not None
        entries = _entries(group.secret_ref or group.config_map_ref, sources, secret=is_secret)
        variables = variables.put({group.prefix + key: value for key, value in entries.items()}, secret=is_secret)
    for variable in container.env:
        value = _value(variable, variables.values, container, context, sources)
        if value is not None:
            is_secret = variable.value_from is not None and variable.value_from.secret_key_ref is not None
            variables = variables.put({variable.name: value}, secret=is_secret)
    return variables


def _value(
    variable: EnvVar, earlier: Mapping[str, str], container: RunnableContainer, context: PodContext, sources: Sources
) -> str | None:
    """The value of a variable; None for a missing optional source."""
    if variable.value_from is None:
        return expand(variable.value, earlier)
    return _value_from(variable.value_from, container, context, sources)


def _value_from(
    source: EnvVarSource, container: RunnableContainer, context: PodContext, sources: Sources
) -> str | None:
    if source.field_ref:
        return context.field(source.field_ref)
    if source.resource_field_ref:
        return context.resource(source.resource_field_ref, container.name)
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
