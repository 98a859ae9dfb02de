"""The rules about what containers and pods are given."""

from typing import Any

from tests.api.cases.objects import JSON, Case, gpu_workload, training_job, variable

GPUS = {"nvidia.com/gpu": 4}
RESOURCES = [
    Case(
        "GPUs written twice and alike",
        training_job(
            {"gpusPerWorker": 4, "resources": {"limits": {"nvidia.com/gpu": "4"}, "requests": {"nvidia.com/gpu": 4}}}
        ),
    ),
    Case("GPUs in resources alone", training_job({"resources": {"limits": GPUS}, "networking": {"backend": "nccl"}})),
    Case(
        "GPUs that differ from the limit",
        training_job({"gpusPerWorker": 2, "resources": {"limits": GPUS}}),
        "spec.gpusPerWorker",
        "resources.limits name different numbers",
    ),
    Case(
        "GPUs that differ from the request",
        training_job({"gpusPerWorker": 2, "resources": {"requests": GPUS}}),
        "spec.gpusPerWorker",
        "resources.requests name different numbers",
    ),
    Case(
        "more GPUs asked for than allowed",
        training_job({"resources": {"limits": GPUS, "requests": {"nvidia.com/gpu": 2}}}),
        "spec.resources.requests",
        "GPUs can't be shared",
    ),
    Case(
        "a request above its limit",
        training_job({"resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "1100Mi"}}}),
        "spec.resources.requests",
        "larger than its limit",
    ),
    Case(
        "a request that is its limit in another unit",
        training_job({"resources": {"limits": {"cpu": 1}, "requests": {"cpu": "1000m"}}}),
    ),
    Case(
        "a negative limit",
        training_job({"resources": {"limits": {"cpu": -1}}}),
        "spec.resources.limits",
        "no amount may be negative",
    ),
    Case(
        "a negative request",
        training_job({"resources": {"requests": {"memory": "-1Gi"}}}),
        "spec.resources.requests",
        "no amount may be negative",
    ),
    Case(
        "a thousand GPUs in short",
        training_job({"resources": {"limits": {"nvidia.com/gpu": "1k"}}}),
        "spec.resources.limits",
        "nvidia.com/gpu is a whole number",
    ),
    Case(
        "half a GPU",
        training_job({"resources": {"limits": {"nvidia.com/gpu": 0.5}}}),
        "spec.resources.limits.nvidia.com/gpu",
        "must be of type integer,string",
    ),
    Case(
        "a request without its limit",
        training_job({"resources": {"limits": {"cpu": "1"}, "requests": {"memory": "1Gi"}}}),
    ),
    Case("CPU training", training_job({"gpusPerWorker": 0, "networking": {"backend": "gloo"}})),
    Case(
        "nccl without GPUs",
        training_job({"gpusPerWorker": 0, "networking": {"backend": "nccl"}}),
        "spec.networking.backend",
        "nccl needs GPUs",
    ),
    Case(
        "nccl with no GPUs in the limits",
        training_job({"resources": {"limits": {"nvidia.com/gpu": "0"}}, "networking": {"backend": "nccl"}}),
        "spec.networking.backend",
        "nccl needs GPUs",
    ),
    Case(
        "nccl with no GPUs in the requests",
        training_job({"resources": {"requests": {"nvidia.com/gpu": 0}}, "networking": {"backend": "nccl"}}),
        "spec.networking.backend",
        "nccl needs GPUs",
    ),
    Case("nccl with the GPU that is there by default", training_job({"networking": {"backend": "nccl"}})),
    Case("a workload's GPUs in its limits", gpu_workload({"resources": {"limits": {"nvidia.com/gpu": 2}}})),
    Case(
        "a workload's GPUs that differ from its limits",
        gpu_workload({"resources": {"limits": GPUS}}),
        "spec.gpuCount",
        "resources.limits name different numbers",
    ),
    Case(
        "a workload's GPUs that differ from its requests",
        gpu_workload({"resources": {"requests": GPUS}}),
        "spec.gpuCount",
        "resources.requests name different numbers",
    ),
    Case("a workload's GPUs in its requests", gpu_workload({"resources": {"requests": {"nvidia.com/gpu": "2"}}})),
    Case("a workload without GPUs", gpu_workload({"gpuCount": 0}), "spec.gpuCount", "greater than or equal to 1"),
    Case("a workload of low priority", gpu_workload({"priority": -5, "tolerations": []})),
    Case(
        "a workload of an unknown strategy",
        gpu_workload({"schedulingStrategy": "cheapest"}),
        "spec.schedulingStrategy",
        'supported values: "costOptimized", "leastLoaded", "random"',
    ),
    Case("a workload's own variable", gpu_workload({"env": [variable()]})),
    Case(
        "a workload's reserved variable",
        gpu_workload({"env": [variable("HOLDFAST_INDEX")]}),
        "spec.env",
        "HOLDFAST_ are set by the operator",
    ),
]

SECRET = {"secretKeyRef": {"name": "tokens", "key": "hub"}}
ENVIRONMENT = [
    Case(
        "variables from everywhere",
        training_job(
            {
                "env": [
                    variable(),
                    {"name": "EMPTY"},
                    {"name": "TOKEN", "valueFrom": SECRET},
                    {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {
                        "name": "MEMORY",
                        "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}},
                    },
                    {
                        "name": "CONFIG",
                        "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k.yaml", "optional": True}},
                    },
                ]
            }
        ),
    ),
    Case(
        "a value from two places",
        training_job({"env": [{**variable(), "valueFrom": SECRET}]}),
        "spec.env[0].valueFrom",
        "either value or valueFrom",
    ),
    Case(
        "a value from nowhere",
        training_job({"env": [{"name": "A", "valueFrom": {}}]}),
        "spec.env[0].valueFrom",
        "exactly one source",
    ),
    Case(
        "a value from two sources",
        training_job({"env": [{"name": "A", "valueFrom": {**SECRET, "fieldRef": {"fieldPath": "metadata.name"}}}]}),
        "spec.env[0].valueFrom",
        "exactly one source",
    ),
    Case(
        "a reserved variable",
        training_job({"env": [variable("HOLDFAST_ATTEMPT")]}),
        "spec.env",
        "HOLDFAST_ are set by the operator",
    ),
    Case("names of metrics", training_job({"env": [variable("HOLDFAST_METRIC_NAMES")]})),
    Case(
        "names of metrics of a workload that nobody watches",
        gpu_workload({"env": [variable("HOLDFAST_METRIC_NAMES")]}),
        "spec.env",
        "HOLDFAST_ are set by the operator: choose",
    ),
    Case(
        "a variable with an equals sign", training_job({"env": [variable("A=B")]}), "spec.env[0].name", "should match"
    ),
]


def _scheduling(**fields: Any) -> JSON:
    return training_job({"scheduling": fields})


def _toleration(**fields: Any) -> JSON:
    return _scheduling(tolerations=[fields])


def _spread(**requirement: Any) -> JSON:
    return _scheduling(
        affinity={
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "zone", "labelSelector": {"matchExpressions": [requirement]}}
                ]
            }
        }
    )


def _nodes(**requirement: Any) -> JSON:
    return _scheduling(
        affinity={
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 10, "preference": {"matchExpressions": [requirement]}}
                ]
            }
        }
    )


_SPREAD = (
    "spec.scheduling.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector"
    ".matchExpressions[0].values"
)
_NODES = (
    "spec.scheduling.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference"
    ".matchExpressions[0].values"
)
SCHEDULING = [
    Case("every taint tolerated", _toleration(operator="Exists")),
    Case(
        "one taint tolerated for a time",
        _toleration(key="spot", value="true", effect="NoExecute", tolerationSeconds=30),
    ),
    Case(
        "any value, and a value",
        _toleration(key="spot", operator="Exists", value="true"),
        "spec.scheduling.tolerations[0].value",
        "Exists takes no value",
    ),
    Case("no taint", _toleration(value="true"), "spec.scheduling.tolerations[0].key", "name the taint's key"),
    Case(
        "a time for what does not evict",
        _toleration(key="spot", effect="NoSchedule", tolerationSeconds=30),
        "spec.scheduling.tolerations[0].tolerationSeconds",
        "write effect: NoExecute",
    ),
    Case("workers apart", _spread(key="training-job", operator="In", values=["bert"])),
    Case("a label in no values", _spread(key="training-job", operator="In"), _SPREAD, "In and NotIn need values"),
    Case("a label that exists with values", _spread(key="a", operator="Exists", values=["b"]), _SPREAD, "take none"),
    Case("nodes of a kind", _nodes(key="gpu", operator="NotIn", values=["k80"])),
    Case("nodes of no kind", _nodes(key="gpu", operator="In"), _NODES, "need values"),
]


def _pods(**fields: Any) -> JSON:
    return training_job({"podTemplate": fields})


DATA = {"name": "data", "persistentVolumeClaim": {"claimName": "imagenet", "readOnly": True}}
MOUNT = {"name": "data", "mountPath": "/data"}
PODS = [
    Case("a data set", _pods(volumes=[DATA], volumeMounts=[MOUNT], imagePullSecrets=[{"name": "hub"}])),
    Case(
        "volumes of every kind",
        _pods(
            volumes=[
                {"name": "a", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
                {"name": "b", "hostPath": {"path": "/mnt", "type": "Directory"}},
                {"name": "c", "configMap": {"name": "c", "items": [{"key": "k", "path": "p", "mode": 256}]}},
                {"name": "d", "secret": {"secretName": "s", "defaultMode": 292}},
                {"name": "e", "nfs": {"server": "nfs", "path": "/exports"}},
                {"name": "f", "csi": {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": {"bucketName": "b"}}},
                {"name": "g", "image": {"reference": "registry.example.com/data:1", "pullPolicy": "IfNotPresent"}},
                {
                    "name": "h",
                    "projected": {
                        "sources": [
                            {"serviceAccountToken": {"path": "token", "audience": "sts", "expirationSeconds": 3600}},
                            {
                                "downwardAPI": {
                                    "items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]
                                }
                            },
                        ]
                    },
                },
                {"name": "i", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            ]
        ),
    ),
    Case("a volume without a source", _pods(volumes=[{"name": "data"}]), "spec.podTemplate.volumes[0]", "one source"),
    Case(
        "a volume of two sources",
        _pods(volumes=[{**DATA, "emptyDir": {}}]),
        "spec.podTemplate.volumes[0]",
        "one source",
    ),
    Case(
        "a projection of nothing",
        _pods(volumes=[{"name": "p", "projected": {"sources": [{}]}}]),
        "spec.podTemplate.volumes[0].projected.sources[0]",
        "exactly one of configMap",
    ),
    Case("a mount of no volume", _pods(volumeMounts=[MOUNT]), "spec.podTemplate.volumeMounts", "add the volume"),
    Case(
        "two mounts in one place",
        _pods(volumes=[DATA], volumeMounts=[MOUNT, MOUNT]),
        "spec.podTemplate.volumeMounts[1]",
        "Duplicate value",
    ),
    *(
        Case(
            f"a mount at {path}, in the operator's folder",
            _pods(volumes=[DATA], volumeMounts=[{**MOUNT, "mountPath": path}]),
            "spec.podTemplate.volumeMounts",
            "mount the volume elsewhere",
        )
        for path in ("/etc/holdfast/data", "/etc/holdfast-store", "/holdfast", "//holdfast", "/holdfast-state/a")
    ),
    Case(
        "a mount beside the operator's folders",
        _pods(volumes=[DATA], volumeMounts=[{**MOUNT, "mountPath": "/data/holdfast"}]),
    ),
    Case(
        "a mount over the checkpoints",
        training_job(
            {
                "checkpoint": {},
                "podTemplate": {"volumes": [DATA], "volumeMounts": [{**MOUNT, "mountPath": "/checkpoints/old"}]},
            }
        ),
        "spec.podTemplate.volumeMounts",
        "mount yours elsewhere",
    ),
    Case(
        "a mount beside the checkpoints",
        training_job(
            {
                "checkpoint": {},
                "podTemplate": {"volumes": [DATA], "volumeMounts": [{**MOUNT, "mountPath": "/checkpoints-old"}]},
            }
        ),
    ),
    Case(
        "a mount at the same place where no checkpoints are kept",
        training_job(
            {
                "checkpoint": {"enabled": False},
                "podTemplate": {"volumes": [DATA], "volumeMounts": [{**MOUNT, "mountPath": "/checkpoints"}]},
            }
        ),
    ),
    Case("a label of two words", _pods(labels={"my team": "a"}), "spec.podTemplate.labels", "such as team"),
    Case(
        "an annotation without a name", _pods(annotations={"a/": "b"}), "spec.podTemplate.annotations", "such as team"
    ),
    Case(
        "a node's label of two words", _scheduling(nodeSelector={"a b": "c"}), "spec.scheduling.nodeSelector", "example"
    ),
    Case(
        "a workload's node by a label of two words",
        gpu_workload({"nodeSelector": {"a b": "c"}}),
        "spec.nodeSelector",
        "example.com/team",
    ),
    Case("a workload's node by label", gpu_workload({"nodeSelector": {"nvidia.com/gpu.product": "A100-SXM4-80GB"}})),
    Case(
        "a reserved volume",
        _pods(volumes=[{**DATA, "name": "holdfast-config"}]),
        "spec.podTemplate.volumes",
        "choose another",
    ),
    Case("a label of one's own", _pods(labels={"team": "vision"}, annotations={"note": "x" * 300})),
    Case("a reserved label", _pods(labels={"training-job": "other"}), "spec.podTemplate.labels", "set by the operator"),
    Case(
        "a profile on the node",
        _pods(
            securityContext={"runAsUser": 0, "seccompProfile": {"type": "Localhost", "localhostProfile": "gpu.json"}}
        ),
    ),
    Case(
        "a profile on the node without its name",
        _pods(securityContext={"seccompProfile": {"type": "Localhost"}}),
        "spec.podTemplate.securityContext.seccompProfile.localhostProfile",
        "names the profile",
    ),
    Case(
        "workers spread over zones",
        _pods(
            topologySpreadConstraints=[
                {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ]
        ),
    ),
    Case("a whole container", _pods(containers=[]), "spec.podTemplate.containers", "unknown field"),
]
