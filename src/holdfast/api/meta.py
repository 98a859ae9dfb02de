"""What every Kubernetes object carries: metadata, owners and conditions."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, NamedTuple, TypeAlias

from msgspec import Meta, Struct, structs

from holdfast.api.scalars import list_map_keys
from holdfast.api.schema.rules import Rule

# On one machine: the folder that a workload's command runs in. `holdfast apply` writes where it was called.
WORKING_DIRECTORY = "holdfast.dev/working-directory"


class Key(NamedTuple):
    """Where an object lives; the namespace of a cluster-scoped object is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


# gc=False: these are trees of plain values, so the cyclic collector has nothing to find in a cache of thousands.
class OwnerReference(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages this object, if one does."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class ApiStruct(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """A piece of an object, with the rules that its fields keep among themselves."""

    RULES: ClassVar[tuple[Rule, ...]] = ()


class Object(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """Any object of a cluster: a kind's model adds what we read of its spec and status."""

    RULES: ClassVar[tuple[Rule, ...]] = ()

    metadata: ObjectMeta


class Condition(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """One observation about an object, as metav1.Condition has it."""

    type: Annotated[
        str,
        Meta(
            description="Name of the condition, in CamelCase.",
            max_length=316,
            pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
            r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        ),
    ]
    status: Annotated[
        str, Meta(description="True, False or Unknown.", extra_json_schema={"enum": ["True", "False", "Unknown"]})
    ]
    reason: Annotated[
        str,
        Meta(
            description="Why the condition has this status: one CamelCase word that programs can match.",
            min_length=1,
            max_length=1024,
            pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        ),
    ]
    message: Annotated[str, Meta(description="The same for people, in a sentence.", max_length=32768)]
    last_transition_time: Annotated[
        str,
        Meta(description="When the status last changed.", extra_json_schema={"format": "date-time"}),
    ]
    observed_generation: Annotated[
        int,
        Meta(
            description="The generation of the spec that this condition speaks of.",
            ge=0,
            extra_json_schema={"format": "int64"},
        ),
    ] = 0


Conditions: TypeAlias = Annotated[tuple[Condition, ...], Meta(max_length=32, extra_json_schema=list_map_keys("type"))]
ObservedGeneration: TypeAlias = Annotated[
    int,
    Meta(
        description="The generation of the spec that this status speaks of.",
        ge=0,
        extra_json_schema={"format": "int64"},
    ),
]


# Conditions: what holds, since when.


def merge_conditions(old: Iterable[Condition], new: Iterable[Condition]) -> tuple[Condition, ...]:
    """The new conditions in the old order; one whose status did not change keeps its time of transition."""
    merged = {condition.type: condition for condition in old}
    for condition in new:
        before = merged.get(condition.type)
        if before is not None and before.status == condition.status:
            condition = structs.replace(condition, last_transition_time=before.last_transition_time)
        merged[condition.type] = condition
    return tuple(merged.values())


def is_true(conditions: Iterable[Condition], kind: str) -> bool:
    return any(condition.type == kind and condition.status == "True" for condition in conditions)
