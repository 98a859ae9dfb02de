"""SpotInstanceVM: the template of machines, and the account of those made from it."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from holdfast.api.core.pod import ObjectReference
from holdfast.api.kind import AGE, Kind, PrinterColumn
from holdfast.api.meta import ApiStruct, Conditions, Object, ObservedGeneration
from holdfast.api.scalars import Count, Port, Timestamp, list_map_keys
from holdfast.api.schema.rules import Reason, Rule, duration_rule, immutable_while

# Keeps a SpotInstanceVM while machines made from it exist.
VM_FINALIZER = "training.dcnlab.com/vm"
# On one machine: zones, with commas between them, that have no machine to spare, for a trial of what happens then.
SOLD_OUT_ANNOTATION = "holdfast.dev/sold-out"

InstanceState = Literal["PROVISIONING", "STAGING", "RUNNING", "STOPPING", "TERMINATED"]
Zone = Annotated[str, Meta(max_length=63, pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z]$")]
Project = Annotated[str, Meta(max_length=63, pattern=r"^([a-z][-a-z0-9.]*[a-z0-9]:)?[a-z][-a-z0-9]{4,28}[a-z0-9]$")]


class GPU(ApiStruct, frozen=True, kw_only=True):
    type: Annotated[
        str,
        Meta(
            description="Accelerator type, such as nvidia-tesla-t4 or nvidia-l4.",
            max_length=63,
            pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        ),
    ]
    count: Annotated[int, Meta(description="How many of them a machine has.", ge=1, le=16)]


class GCP(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="!has(self.region) || self.zone.startsWith(self.region + '-')",
            message="the zone lies in another region: write a zone of the region (europe-west4-a lies in "
            "europe-west4), or remove region",
            field=".zone",
        ),
        duration_rule("preemptionNotice", optional=True, longest=("10m", "10 minutes")),
        duration_rule(
            "maxRunDuration", optional=True, shortest=("30s", "30 seconds"), longest=("2880h", "120 days (2880h)")
        ),
    )

    project: Annotated[Project, Meta(description="Project that machines are made in.")]
    zone: Annotated[Zone, Meta(description="Zone that is tried first, such as us-central1-a.")]
    region: (
        Annotated[
            str,
            Meta(
                description="Region of the zone; derived from it when left out.",
                max_length=63,
                pattern=r"^[a-z]+-[a-z]+[0-9]+$",
            ),
        ]
        | None
    ) = None
    machine_type: Annotated[
        str,
        Meta(
            description="Machine type, such as n1-standard-4. It must go with the GPU type.",
            max_length=63,
            pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        ),
    ]
    disk_size_gb: Annotated[int, Meta(description="Size of the boot disk in GB; 100 by default.", ge=10, le=65536)] = (
        field(name="diskSizeGB", default=100)
    )
    disk_type: Annotated[
        str,
        Meta(
            description="Type of the boot disk; pd-standard by default.",
            max_length=63,
            pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        ),
    ] = "pd-standard"
    network: (
        Annotated[
            str,
            Meta(
                description="VPC network, such as training, or projects/my-host-project/global/networks/shared for one "
                "of another project. Without it, that of subnetwork, else default.",
                max_length=256,
                pattern=r"^(projects/[^/\s]+/global/networks/)?[a-z]([-a-z0-9]*[a-z0-9])?$",
            ),
        ]
        | None
    ) = None
    subnetwork: (
        Annotated[
            str,
            Meta(
                description="Subnetwork, needed where the network makes none by itself. A name means the one of that "
                "name in the region of the machine's zone; one of another project is written as "
                "projects/my-host-project/regions/us-central1/subnetworks/gpus.",
                max_length=256,
                pattern=r"^(projects/[^/\s]+/regions/[^/\s]+/subnetworks/)?[a-z]([-a-z0-9]*[a-z0-9])?$",
            ),
        ]
        | None
    ) = None
    external_ip: Annotated[
        bool,
        Meta(
            description="Whether machines have a public address; true by default. Without one the operator logs in at "
            "the internal address, and machines reach registries through Cloud NAT or Private Google Access."
        ),
    ] = field(name="externalIP", default=True)
    network_tags: Annotated[
        tuple[Annotated[str, Meta(max_length=63, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")], ...],
        Meta(
            description="Network tags of the machine, for firewall rules.",
            max_length=64,
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    service_account: (
        Annotated[
            str,
            Meta(
                description="E-mail address of the machine's own service account; none without it.",
                max_length=254,
                pattern=r"^(default|[^@\s]+@[^@\s]+)$",
            ),
        ]
        | None
    ) = None
    min_cpu_platform: (
        Annotated[
            str,
            Meta(
                description="The oldest CPU platform, such as Intel Cascade Lake. A frozen container can't go on on a "
                "CPU that lacks features of the one it began on.",
                max_length=63,
                pattern=r"^[A-Za-z][A-Za-z0-9]*( [A-Za-z0-9]+)*$",
            ),
        ]
        | None
    ) = None
    preemption_notice: (
        Annotated[
            str,
            Meta(
                description='How long before the power-off signal a spot machine is told, such as "120s". With enough '
                "of it a replica is saved before it is lost. Without it Compute Engine tells both at once, and leaves "
                "about 30 seconds.",
                max_length=16,
            ),
        ]
        | None
    ) = None
    max_run_duration: (
        Annotated[
            str,
            Meta(
                description='How long a machine may run, such as "24h"; Compute Engine then deletes it, which counts '
                "as a lost machine and not against backoffLimit. A last resort against forgotten machines.",
                max_length=16,
            ),
        ]
        | None
    ) = None


class KubeadmJoinConfig(ApiStruct, frozen=True, kw_only=True):
    token_secret_ref: Annotated[
        ObjectReference,
        Meta(
            description="Secret with the keys token, ca-cert-hash and control-plane-endpoint of the cluster to join. "
            "One of another namespace must list that of the machine's object in its annotation "
            "holdfast.dev/allow-namespaces."
        ),
    ]
    ca_cert_hash: (
        Annotated[
            str,
            Meta(
                description="Hash of the cluster's CA certificate, sha256: and 64 hexadecimal digits; instead of the "
                "Secret's ca-cert-hash.",
                max_length=71,
                pattern=r"^sha256:[0-9a-f]{64}$",
            ),
        ]
        | None
    ) = None
    control_plane_endpoint: (
        Annotated[
            str,
            Meta(
                description="Host and port of the API server as the machine sees it, such as 10.0.0.2:6443; instead of "
                "the Secret's control-plane-endpoint.",
                max_length=259,
                pattern=r"^[^\s/]+:[0-9]{1,5}$",
            ),
        ]
        | None
    ) = None


class SSH(ApiStruct, frozen=True, kw_only=True):
    user: Annotated[
        str,
        Meta(description="User to log in as.", max_length=32, pattern=r"^[a-z_][a-z0-9_-]*$"),
    ]
    port: Annotated[Port, Meta(description="Port of the SSH server; 22 by default.")] = 22
    key_secret_ref: Annotated[
        ObjectReference,
        Meta(
            description="Secret whose key ssh-privatekey holds the private key. The public one is given to machines "
            "when they are made."
        ),
    ]


# CEL: the zone lies in the region that the path of the subnetwork names.
_IN_SUBNETWORK = "{}.startsWith(self.gcp.subnetwork.split('/')[3] + '-')"


class SpotInstanceVMSpec(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="!has(self.zones) || !(self.gcp.zone in self.zones)",
            message="zones lists the alternatives to gcp.zone: leave gcp.zone out of it",
            field=".zones",
        ),
        *(
            Rule(
                rule=f"!has(self.gcp.subnetwork) || !self.gcp.subnetwork.contains('/') || {zones}",
                message="that subnetwork lies in another region than this zone: write its name alone, which means the "
                "one of that name in each zone's region, or zones of its region",
                field=blamed,
            )
            for blamed, zones in (
                (".gcp.zone", _IN_SUBNETWORK.format("self.gcp.zone")),
                (".zones", f"!has(self.zones) || self.zones.all(zone, {_IN_SUBNETWORK.format('zone')})"),
            )
        ),
        Rule(
            rule="!has(self.gcp.preemptionNotice) || !has(self.preemptible) || self.preemptible",
            message="on-demand machines are not taken back, so nothing announces it: remove preemptionNotice, or "
            "preemptible: false",
            field=".gcp.preemptionNotice",
            reason=Reason.FORBIDDEN,
        ),
    )

    vm_image: Annotated[
        str,
        Meta(
            description="Image of the boot disk, such as projects/cos-cloud/global/images/cos-stable-109-17800-147-54.",
            max_length=512,
            pattern=r"^\S+$",
        ),
    ]
    gpu: Annotated[GPU | None, Meta(description="GPUs of the machine; none without it.")] = None
    gcp: Annotated[GCP, Meta(description="Where on Google Cloud, and which machine.")]
    zones: Annotated[
        tuple[Zone, ...],
        Meta(
            description="Zones that are tried, in this order, when gcp.zone has no machine to spare.",
            max_length=32,
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    startup_script: (
        Annotated[
            str,
            Meta(
                description="Script that the machine runs as root when it starts. It may join the machine to the "
                "cluster: a machine that turns up by itself as a Node of its own name counts as joined. No secret "
                "belongs here, since every program on the machine can read it.",
                max_length=262144,
            ),
        ]
        | None
    ) = None
    kubeadm_join_config: Annotated[
        KubeadmJoinConfig | None,
        Meta(
            description="What kubeadm join is given on a machine. Without it, the operator makes a token for that "
            "machine alone, which is revoked after the join, and takes the rest from the cluster's own cluster-info. "
            "Not used for a machine that turns up as a Node by itself."
        ),
    ] = None
    ssh: Annotated[
        SSH | None,
        Meta(
            description="How the operator logs in to a machine, to run kubeadm join there. Without it: as the user "
            "holdfast on port 22, with a key that is derived for each machine and stored nowhere. Nobody logs in to a "
            "machine that turns up as a Node by itself, because its image or startupScript saw to that."
        ),
    ] = None
    preemptible: Annotated[
        bool,
        Meta(description="true (default): spot machines, cheaper, and taken away at need. false: on-demand machines."),
    ] = True


class InstanceReport(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(description="Name of the ProvisionedInstance.", max_length=253)]
    instance_id: Annotated[str, Meta(description="The provider's number of the machine.", max_length=64)] | None = (
        field(name="instanceID", default=None)
    )
    internal_ip: Annotated[str, Meta(description="Address in the network.", max_length=64)] | None = field(
        name="internalIP", default=None
    )
    external_ip: Annotated[str, Meta(description="Public address, if any.", max_length=64)] | None = field(
        name="externalIP", default=None
    )
    state: Annotated[InstanceState | None, Meta(description="The provider's state of the machine.")] = None
    joined_cluster: Annotated[bool, Meta(description="Whether it has become a node.")] = False
    node_name: Annotated[str, Meta(description="The node that it has become.", max_length=253)] | None = None
    creation_time: Annotated[Timestamp, Meta(description="When the machine was made.")] | None = None
    preempted: Annotated[
        bool, Meta(description="Whether the provider takes it back, or has; it is counted in lifetimes then.")
    ] = False


class ZoneLifetime(ApiStruct, frozen=True, kw_only=True):
    zone: Annotated[Zone, Meta(description="The zone.")]
    preemptions: Annotated[Count, Meta(description="How many machines were taken back there.")] = 0
    seconds: Annotated[
        Count,
        Meta(
            description="How long these machines ran, together, from their creation until they were taken back.",
            extra_json_schema={"format": "int64"},
        ),
    ] = 0


class SpotInstanceVMStatus(ApiStruct, frozen=True, kw_only=True):
    observed_generation: ObservedGeneration = 0
    conditions: Annotated[Conditions, Meta(description="Ready, for kubectl wait.")] = ()
    provisioned_instances: Annotated[
        tuple[InstanceReport, ...],
        Meta(
            description="The machines that were made from this template and are not gone; one that was taken back "
            "stays until its object is deleted.",
            max_length=1000,
            extra_json_schema=list_map_keys("name"),
        ),
    ] = ()
    lifetimes: Annotated[
        tuple[ZoneLifetime, ...],
        Meta(
            description="How long machines of this template lasted, by zone; checkpointInterval: auto reads it.",
            max_length=64,
            extra_json_schema=list_map_keys("zone"),
        ),
    ] = ()


class SpotInstanceVM(Object, frozen=True, kw_only=True):
    """The machines that a SpotInstanceJob may order: image, size, GPUs and zones. A change acts on the next machine."""

    RULES: ClassVar = immutable_while(
        (".spec.gcp.project",),
        while_="has(self.status) && has(self.status.provisionedInstances) && "
        "size(self.status.provisionedInstances) > 0",
        message="machines of this template still run in this project: delete them first, or create another "
        "SpotInstanceVM",
    )

    spec: Annotated[SpotInstanceVMSpec, Meta(description="What the machines are like.")]
    status: Annotated[
        SpotInstanceVMStatus | None, Meta(description="What the operator has found. Written by the operator alone.")
    ] = None


KIND = Kind(
    group="training.training.dcnlab.com",
    versions=("v1alpha1",),
    kind="SpotInstanceVM",
    plural="spotinstancevms",
    short_name="sivm",
    model=SpotInstanceVM,
    columns=(
        PrinterColumn(name="MACHINE", path=".spec.gcp.machineType", description="Machine type."),
        PrinterColumn(name="GPU", path=".spec.gpu.type", description="Accelerator type."),
        PrinterColumn(name="GPUS", path=".spec.gpu.count", type="integer", description="GPUs of a machine."),
        PrinterColumn(name="ZONE", path=".spec.gcp.zone", description="Zone that is tried first."),
        AGE,
        PrinterColumn(
            name="SPOT", path=".spec.preemptible", type="boolean", wide=True, description="Spot or on demand."
        ),
        PrinterColumn(
            name="INSTANCES", path=".status.provisionedInstances[*].name", wide=True, description="The machines."
        ),
    ),
)
