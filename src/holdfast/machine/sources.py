"""The ConfigMaps, Secrets and claims that a pod refers to, read when they are needed and kept nowhere."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar

from msgspec import Struct

from holdfast.api.meta import Key, Object
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import Cluster, Resource
from holdfast.machine.objects import (
    CLAIMS,
    CONFIG_MAPS,
    SECRETS,
    ConfigMap,
    Container,
    Named,
    ObjectVolume,
    Pod,
    Secret,
    Volume,
)

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
