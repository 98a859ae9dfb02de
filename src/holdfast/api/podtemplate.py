"""What a user may lay over the pods that holdfast builds: these fields, with all that they can say."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from holdfast.api.core.container import VolumeMount
from holdfast.api.core.references import LocalObjectReference
from holdfast.api.core.scheduling import TopologySpreadConstraint
from holdfast.api.core.security import PodSecurityContext
from holdfast.api.core.volumes import Volume
from holdfast.api.meta import ApiStruct
from holdfast.api.rules import Reason, Rule, label_keys_rule
from holdfast.api.scalars import DnsSubdomain, Labels, Seconds, list_map_keys


class PodTemplate(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="!has(self.volumeMounts) || self.volumeMounts.all(mount, "
            "has(self.volumes) && self.volumes.exists(volume, volume.name == mount.name))",
            message="every mount names a volume of podTemplate.volumes: add the volume, or correct the name",
            field=".volumeMounts",
        ),
        Rule(
            rule="!has(self.volumes) || self.volumes.all(volume, !volume.name.startsWith('holdfast-'))",
            message="names of volumes that start with holdfast- are the operator's own: choose another",
            field=".volumes",
            reason=Reason.FORBIDDEN,
        ),
        Rule(
            rule="!has(self.volumeMounts) || self.volumeMounts.all(mount, "
            "!mount.mountPath.matches('^/+(etc/+)?holdfast(-[a-z]+)?(/|$)'))",
            message="/holdfast, /etc/holdfast and the like are the operator's own folders: mount the volume elsewhere",
            field=".volumeMounts",
            reason=Reason.FORBIDDEN,
        ),
        label_keys_rule("labels"),
        label_keys_rule("annotations"),
        Rule(
            rule="!has(self.labels) || self.labels.all(key, !(key in ['training-job', 'trainingjob']) && "
            "!key.startsWith('holdfast.dev/') && !key.startsWith('batch.kubernetes.io/'))",
            message="training-job, trainingjob, holdfast.dev/… and batch.kubernetes.io/… are set by the operator: "
            "choose other labels",
            field=".labels",
            reason=Reason.FORBIDDEN,
        ),
    )

    volumes: Annotated[
        tuple[Volume, ...],
        Meta(
            description="Further volumes of every worker, such as data sets.",
            max_length=32,
            extra_json_schema=list_map_keys("name"),
        ),
    ] = ()
    volume_mounts: Annotated[
        tuple[VolumeMount, ...],
        Meta(
            description="Where the training container sees them. One at /dev/shm takes the place of the "
            "operator's shared memory volume.",
            max_length=32,
            extra_json_schema=list_map_keys("mountPath"),
        ),
    ] = ()
    image_pull_secrets: Annotated[
        tuple[LocalObjectReference, ...],
        Meta(
            description="Secrets with the credentials of private registries.",
            max_length=16,
            extra_json_schema=list_map_keys("name"),
        ),
    ] = ()
    image_pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"] | None,
        Meta(description="When the image is pulled again. Kubernetes' default: Always for the tag latest, else once."),
    ] = None
    service_account_name: Annotated[
        DnsSubdomain,
        Meta(
            description="Service account of the pods, for workload identity. Without it the operator makes one with "
            "the job's name. Either way no API token is mounted by itself; a projected volume of yours can mount one. "
            "The operator may forbid to name one."
        ),
    ] = ""
    annotations: Annotated[
        dict[str, Annotated[str, Meta(max_length=65536)]],
        Meta(description="Further annotations of the pods.", max_length=64),
    ] = {}
    labels: Annotated[Labels, Meta(description="Further labels of the pods.")] = {}
    runtime_class_name: Annotated[DnsSubdomain, Meta(description="The RuntimeClass, such as nvidia.")] = ""
    host_network: Annotated[
        bool,
        Meta(
            description="Whether the pods use the node's network, as some RDMA set-ups need. Two workers on one node "
            "then compete for masterPort and metricsPort, and the sidecar's ports 8470 and 8471 keep two workers with "
            "sidecars off one node. The namespace's pod security level, or the operator, may forbid it."
        ),
    ] = False
    topology_spread_constraints: Annotated[
        tuple[TopologySpreadConstraint, ...],
        Meta(
            description="How workers are spread over zones or nodes.",
            max_length=16,
            extra_json_schema=list_map_keys("topologyKey", "whenUnsatisfiable"),
        ),
    ] = ()
    security_context: Annotated[
        PodSecurityContext | None,
        Meta(
            description="As whom the pods run. Fields written here replace those of the operator's default: user, "
            "group and fsGroup 1000 (set on a volume whose root differs), not root, the runtime's seccomp profile. "
            "The namespace's pod security level, or the operator, may forbid root."
        ),
    ] = None
    termination_grace_period_seconds: (
        Annotated[
            Seconds,
            Meta(
                description="How long a worker that is stopped may take to save. A part of it is kept back for the "
                "upload of the last checkpoint. Without it 30, with checkpoints on a volume 90 and in an object store "
                "600; a worker that is done ends earlier."
            ),
        ]
        | None
    ) = None
