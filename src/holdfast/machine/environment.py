"""The variables that a container's processes see: those that the pod declares, and a small base."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from holdfast.machine.downward import PodContext
from holdfast.machine.expansion import expand
from holdfast.machine.objects import ConfigMap, Container, EnvVar, EnvVarSource, KeyRef, Secret
from holdfast.machine.sources import Sources
from holdfast.machine.trouble import ConfigError

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
