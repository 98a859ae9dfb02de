"""Where a pod may run: selectors, affinity, tolerations and spreading."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from holdfast.api.meta import ApiStruct
from holdfast.api.scalars import DnsLabel, Labels, LabelValue, QualifiedName
from holdfast.api.schema.rules import Reason, Rule

Weight = Annotated[int, Meta(description="How much this counts among the preferences, 1 to 100.", ge=1, le=100)]
LabelKeys = Annotated[tuple[QualifiedName, ...], Meta(max_length=16)]


class LabelSelectorRequirement(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            message="In and NotIn need values; Exists and DoesNotExist take none",
            field=".values",
        ),
    )

    key: Annotated[QualifiedName, Meta(description="The label.")]
    operator: Annotated[
        Literal["In", "NotIn", "Exists", "DoesNotExist"], Meta(description="How its value relates to values.")
    ]
    values: Annotated[
        tuple[LabelValue, ...], Meta(description="The values; only for In and NotIn.", max_length=32)
    ] = ()


class LabelSelectorField(ApiStruct, frozen=True, kw_only=True):
    match_labels: Annotated[Labels, Meta(description="Labels that must be there with these values.")] = {}
    match_expressions: Annotated[
        tuple[LabelSelectorRequirement, ...], Meta(description="Conditions that must all hold.", max_length=16)
    ] = ()


class NodeSelectorRequirement(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="!(self.operator in ['In', 'NotIn', 'Gt', 'Lt']) || (has(self.values) && size(self.values) > 0)",
            message="In, NotIn, Gt and Lt need values",
            field=".values",
            reason=Reason.REQUIRED,
        ),
    )

    key: Annotated[QualifiedName, Meta(description="The node's label or field.")]
    operator: Annotated[
        Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"],
        Meta(description="How its value relates to values. Gt and Lt compare one whole number."),
    ]
    values: Annotated[
        tuple[Annotated[str, Meta(max_length=253)], ...],
        Meta(description="The values; none for Exists and DoesNotExist.", max_length=32),
    ] = ()


class NodeSelectorTermField(ApiStruct, frozen=True, kw_only=True):
    match_expressions: Annotated[
        tuple[NodeSelectorRequirement, ...], Meta(description="Conditions on labels; all must hold.", max_length=16)
    ] = ()
    match_fields: Annotated[
        tuple[NodeSelectorRequirement, ...],
        Meta(description="Conditions on fields (metadata.name); all must hold.", max_length=16),
    ] = ()


class NodeSelectorField(ApiStruct, frozen=True, kw_only=True):
    node_selector_terms: Annotated[
        tuple[NodeSelectorTermField, ...],
        Meta(description="Alternatives; one must match.", min_length=1, max_length=16),
    ]


class PreferredSchedulingTermField(ApiStruct, frozen=True, kw_only=True):
    weight: Weight
    preference: Annotated[NodeSelectorTermField, Meta(description="The nodes that are preferred.")]


class NodeAffinityField(ApiStruct, frozen=True, kw_only=True):
    required_during_scheduling_ignored_during_execution: Annotated[
        NodeSelectorField | None, Meta(description="Nodes that the pod must run on; checked when it is scheduled.")
    ] = None
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredSchedulingTermField, ...], Meta(description="Nodes that are better than others.", max_length=16)
    ] = ()


class PodAffinityTermField(ApiStruct, frozen=True, kw_only=True):
    topology_key: Annotated[
        QualifiedName,
        Meta(description="Label whose value makes nodes one place: kubernetes.io/hostname for the node itself."),
    ]
    label_selector: Annotated[LabelSelectorField | None, Meta(description="Which pods are meant.")] = None
    match_label_keys: Annotated[
        LabelKeys, Meta(description="Labels whose value is taken from the new pod and added to the selector.")
    ] = ()
    mismatch_label_keys: Annotated[
        LabelKeys, Meta(description="The same, for pods whose value differs from the new pod's.")
    ] = ()
    namespaces: Annotated[
        tuple[DnsLabel, ...], Meta(description="Namespaces to look in; empty means the pod's own.", max_length=32)
    ] = ()
    namespace_selector: Annotated[
        LabelSelectorField | None, Meta(description="Namespaces to look in, by their labels; {} means all.")
    ] = None


class WeightedPodAffinityTermField(ApiStruct, frozen=True, kw_only=True):
    weight: Weight
    pod_affinity_term: Annotated[PodAffinityTermField, Meta(description="The pods that are preferred as neighbours.")]


class PodAffinityField(ApiStruct, frozen=True, kw_only=True):
    required_during_scheduling_ignored_during_execution: Annotated[
        tuple[PodAffinityTermField, ...],
        Meta(description="Pods that must (or, for anti-affinity, must not) run in the same place.", max_length=16),
    ] = ()
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[WeightedPodAffinityTermField, ...],
        Meta(description="Pods that had better (or better not) run in the same place.", max_length=16),
    ] = ()


class AffinityField(ApiStruct, frozen=True, kw_only=True):
    node_affinity: Annotated[NodeAffinityField | None, Meta(description="Which nodes, by their labels.")] = None
    pod_affinity: Annotated[PodAffinityField | None, Meta(description="Near which other pods.")] = None
    pod_anti_affinity: Annotated[
        PodAffinityField | None,
        Meta(
            description="Away from which other pods. Every worker carries the label training-job with the job's name, "
            "so that workers can be kept on different nodes."
        ),
    ] = None


class TolerationField(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
            message="operator Exists takes no value: remove value, or write operator: Equal",
            field=".value",
            reason=Reason.FORBIDDEN,
        ),
        Rule(
            rule="has(self.key) || (has(self.operator) && self.operator == 'Exists')",
            message="name the taint's key, or write operator: Exists to tolerate every taint",
            field=".key",
            reason=Reason.REQUIRED,
        ),
        Rule(
            rule="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            message="tolerationSeconds acts on evictions only: write effect: NoExecute, or remove it",
            field=".tolerationSeconds",
        ),
    )

    key: Annotated[QualifiedName, Meta(description="The taint; without it, every taint.")] | None = None
    operator: Annotated[
        Literal["Exists", "Equal"] | None,
        Meta(description="Exists tolerates every value, Equal (the default) the one in value."),
    ] = None
    value: Annotated[LabelValue, Meta(description="The taint's value; only for Equal.")] = ""
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None,
        Meta(description="The taint's effect; without it, every effect."),
    ] = None
    toleration_seconds: (
        Annotated[
            int,
            Meta(
                description="How long a NoExecute taint is tolerated; without it, for ever.",
                extra_json_schema={"format": "int64"},
            ),
        ]
        | None
    ) = None


class TopologySpreadConstraintField(ApiStruct, frozen=True, kw_only=True):
    max_skew: Annotated[int, Meta(description="By how many pods two places may differ.", ge=1)]
    topology_key: Annotated[QualifiedName, Meta(description="Label whose value makes nodes one place.")]
    when_unsatisfiable: Annotated[
        Literal["DoNotSchedule", "ScheduleAnyway"],
        Meta(description="Whether a pod that would break the constraint waits, or is scheduled all the same."),
    ]
    label_selector: Annotated[LabelSelectorField | None, Meta(description="Which pods are counted.")] = None
    min_domains: Annotated[int, Meta(description="How many places there must be at least.", ge=1)] | None = None
    node_affinity_policy: Annotated[
        Literal["Honor", "Ignore"] | None,
        Meta(description="Whether nodes that the pod can't run on are left out of the count; Honor by default."),
    ] = None
    node_taints_policy: Annotated[
        Literal["Honor", "Ignore"] | None,
        Meta(description="Whether nodes with a taint that the pod does not tolerate are left out; Ignore by default."),
    ] = None
    match_label_keys: Annotated[
        LabelKeys, Meta(description="Labels whose value is taken from the new pod and added to the selector.")
    ] = ()
