"""SpotInstanceVM: the template of machines, and the account of those made from it."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from holdfast.api.core.pod import ObjectReference
from holdfast.api.kind import AGE, Kind, PrinterColumn
from holdfast.api.meta import ApiStruct, Conditions, Object, ObservedGeneration
from holdfast.api.scalars import Port, Timestamp, list_map_keys
from holdfast.api.schema.rules import Reason, Rule, immutable_while

InstanceState = Literal["PROVISIONING", "STAGING", "RUNNING", "STOPPING", "TERMINATED"]
Zone = Annotated[str, Meta(max_length=63, pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z]$")]


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
    )

    project: Annotated[
        str,
        Meta(
            description="Project that machines are made in.",
            max_length=63,
            pattern=r"^([a-z][-a-z0-9.]*[a-z0-9]:)?[a-z][-a-z0-9]{4,28}[a-z0-9]$",
        ),
    ]
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


class KubeadmJoinConfig(ApiStruct, frozen=True, kw_only=True):
    token_secret_ref: Annotated[
        ObjectReference,
        Meta(description="Secret with the keys token, ca-cert-hash and control-plane-endpoint of the cluster to join."),
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
        ObjectReference, Meta(description="Secret whose key ssh-privatekey holds the private key.")
    ]


class SpotInstanceVMSpec(ApiStruct, frozen=True, kw_only=True):
    RULES: ClassVar = (
        Rule(
            rule="!has(self.zones) || !(self.gcp.zone in self.zones)",
            message="zones lists the alternatives to gcp.zone: leave gcp.zone out of it",
            field=".zones",
        ),
        Rule(
            rule="!has(self.ssh) || has(self.kubeadmJoinConfig)",
            message="a machine is logged in to in order to join it to the cluster: add kubeadmJoinConfig, or "
            "remove ssh",
            field=".kubeadmJoinConfig",
            reason=Reason.REQUIRED,
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
        Annotated[str, Meta(description="Script that the machine runs when it starts.", max_length=262144)] | None
    ) = None
    kubeadm_join_config: Annotated[
        KubeadmJoinConfig | None,
        Meta(description="How a machine joins the cluster; without it, the image or the script sees to that."),
    ] = None
    ssh: Annotated[
        SSH | None,
        Meta(description="How to log in to a machine to run kubeadm join; without it, the startup script runs it."),
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


class SpotInstanceVMStatus(ApiStruct, frozen=True, kw_only=True):
    observed_generation: ObservedGeneration = 0
    conditions: Annotated[Conditions, Meta(description="Ready, for kubectl wait.")] = ()
    provisioned_instances: Annotated[
        tuple[InstanceReport, ...],
        Meta(
            description="The machines that were made from this template and are not gone.",
            max_length=1000,
            extra_json_schema=list_map_keys("name"),
        ),
    ] = ()


class SpotInstanceVM(Object, frozen=True, kw_only=True):
    """The machines that a SpotInstanceJob may order: image, size, GPUs and zones. A change acts on the next machine."""

    RULES: ClassVar = immutable_while(
        (".spec.gcp.project",),
        while_="has(self.status) && has(self.status.provisionedInstances) && "
        "size(self.status.provisionedInstances) > 0",
        message="machines are still running in this project and would be lost sight of: delete them first, or create "
        "another SpotInstanceVM",
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
