"""The options of `holdfast operator`, with their help."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from holdfast.pods.template import CLUSTER_DOMAIN, Discovery, ForbiddenFeature

Kubeconfig = Annotated[
    Path | None,
    typer.Option(help="Which cluster; by default as kubectl finds it, or the one this pod runs in.", metavar="F"),
]
Namespace = Annotated[
    list[str] | None, typer.Option(help="Look after this namespace only; may be repeated.", metavar="N")
]
Workers = Annotated[int, typer.Option(help="Reconciles that run at the same time, per kind.", min=1)]
LeaderElect = Annotated[bool, typer.Option(help="Act only while holding the Lease, so that several replicas can run.")]
LeaseNamespace = Annotated[
    str, typer.Option(help="Where the Lease is; by default the namespace of the pod or of the context.")
]
MetricsPort = Annotated[int, typer.Option(help="Prometheus metrics: /metrics.", min=0, max=65535)]
HealthPort = Annotated[int, typer.Option(help="Health: /healthz and /readyz.", min=0, max=65535)]
ReportsPort = Annotated[int, typer.Option(help="Where the workers' sidecars report.", min=0, max=65535)]
ReportsAddress = Annotated[
    str,
    typer.Option(
        help="The address at which pods reach this operator; without one no progress is shown.", envvar="POD_IP"
    ),
]
BindAddress = Annotated[str, typer.Option(help="Address that all three listen on; all by default.")]
DefaultImage = Annotated[
    str, typer.Option(help="What a TrainingJob without an image runs.", envvar="HOLDFAST_DEFAULT_IMAGE")
]
FrameworkImage = Annotated[
    list[str] | None,
    typer.Option(help="The same for one framework, such as jax=repo/jax:1; may be repeated.", metavar="F=IMAGE"),
]
HoldfastImage = Annotated[
    str,
    typer.Option(help="Image with the holdfast command, run beside the workers.", envvar="HOLDFAST_IMAGE"),
]
TensorboardImage = Annotated[
    str, typer.Option(help="What runs for tensorboardEnabled.", envvar="HOLDFAST_TENSORBOARD_IMAGE")
]
RdmaResource = Annotated[str, typer.Option(help="The extended resource of one RDMA device, for rdmaEnabled.")]
ClaimSize = Annotated[str, typer.Option(help="Size of a claim for checkpoints that says none, such as 10Gi.")]
ServiceMonitors = Annotated[
    bool, typer.Option(help="Make a ServiceMonitor for each job with monitoring (needs the Prometheus Operator).")
]
DiscoveryOption = Annotated[
    Discovery,
    typer.Option(
        "--discovery",
        help="How the workers of a job find each other: through a headless Service of their job, or through one for "
        "the whole namespace, which makes jobs cheaper where they are many.",
    ),
]
ClusterDomain = Annotated[
    str,
    typer.Option(
        help="What the cluster's DNS names end with; by default as in the operator's own /etc/resolv.conf, "
        f"else {CLUSTER_DOMAIN}."
    ),
]
Forbid = Annotated[
    list[ForbiddenFeature] | None,
    typer.Option(
        help="Refuse jobs whose podTemplate, or jobTemplate of SpotInstanceJobs, asks for this; may be repeated."
    ),
]
GangAdmission = Annotated[
    bool,
    typer.Option(
        help="Start a job only when all its workers fit on the nodes that are there. Switch it off where an "
        "autoscaler adds nodes for pods that wait."
    ),
]
StarvationTimeout = Annotated[
    float,
    typer.Option(help="Seconds for which smaller jobs may pass one that does not fit.", min=0),
]
ReservationsPerNamespace = Annotated[
    int,
    typer.Option(help="Jobs of a namespace for which nodes are reserved at a time, after --patience.", min=0),
]
BindTimeout = Annotated[
    float,
    typer.Option(help="Seconds for an admitted job to get all its nodes, before it gives its nodes back.", min=1),
]
LostPodTimeout = Annotated[
    float,
    typer.Option(help="Seconds beyond its grace that a pod on a lost node holds up a restart.", min=0),
]
RestartGracePeriod = Annotated[int, typer.Option(help="Seconds for the workers that are left when one is lost.", min=0)]
RestartUploadGracePeriod = Annotated[
    int,
    typer.Option(help="The same where a checkpoint may still be on its way to an object store.", min=0),
]
ReportTimeout = Annotated[
    float,
    typer.Option(help="Seconds without a report after which a worker may be lost with its node.", min=1),
]
NodeLeaseTimeout = Annotated[
    float,
    typer.Option(
        help="Seconds without a renewal of its node's Lease after which that worker is lost, if nothing answers at the "
        "node; where that can't be asked, it has to be silent for so long besides --silent-after.",
        min=1,
    ),
]
ProbeNodes = Annotated[
    bool,
    typer.Option(
        help="Ask the nodes of silent workers, by a connection to their kubelets and sidecars. Switch it off where "
        "something accepts connections in the place of dead nodes, as the proxy of a service mesh does."
    ),
]
FinalCheckpointTimeout = Annotated[
    float,
    typer.Option(help="Seconds for a last checkpoint when successPolicy is met or a worker is deleted.", min=0),
]
RetryBackoff = Annotated[
    float,
    typer.Option(help="Seconds before the second restart in a row; doubled with each further one.", min=0),
]
RetryBackoffCap = Annotated[float, typer.Option(help="The longest wait between restarts, in seconds.", min=0)]
Resync = Annotated[
    float,
    typer.Option(help="Seconds within which every object is reconciled again, in case a change was missed.", min=1),
]
PerJobMetrics = Annotated[
    bool, typer.Option(help="Metrics with a label for each job; switch it off where jobs are many.")
]


CheckpointAgent = Annotated[
    Literal["holdfast", "external"],
    typer.Option(
        help="Who carries out runs of CheckpointBackups in container mode: holdfast's node agents, or an agent of "
        "others that writes the same phases."
    ),
]
NodeServiceAccount = Annotated[
    str,
    typer.Option(
        help="The account of the node agents, as system:serviceaccount:namespace:name; by default holdfast-node in "
        "the namespace of the Lease."
    ),
]
OwnCloudIdentity = Annotated[
    list[str] | None,
    typer.Option(
        help="A namespace whose machines may be made with the operator's own cloud identity where their job names no "
        "Secret; may be repeated.",
        metavar="N",
    ),
]
MachineLaunchTimeout = Annotated[
    float, typer.Option(help="Seconds for the cloud to accept a machine, before it is given up.", min=1)
]
MachineJoinTimeout = Annotated[
    float, typer.Option(help="Seconds for each step in which a machine joins the cluster, likewise.", min=1)
]
MachineReadyTimeout = Annotated[
    float, typer.Option(help="Seconds for a joined machine's node, DaemonSets and GPUs to be ready, likewise.", min=1)
]
