"""The rules of a TrainingJob's checkpoints, GPUs, network and monitoring."""

from typing import Any

from tests.api.cases.objects import JSON, Case, training_job


def storage(**fields: Any) -> JSON:
    return training_job({"checkpoint": {"storage": fields}})


STORAGE = [
    Case("a claim of the default class", training_job({"checkpoint": {}})),
    Case("a claim by name", storage(pvcName="scratch")),
    Case("a claim by size", storage(size="100Gi", storageClassName="fast")),
    Case(
        "a claim by name and size",
        storage(pvcName="scratch", size="1Gi"),
        "spec.checkpoint.storage.pvcName",
        "write one or the other",
    ),
    Case("a bucket", storage(type="s3", s3Bucket="ml-checkpoints", region="eu-central-1", secretRef={"name": "aws"})),
    Case("s3 without a bucket", storage(type="s3"), "spec.checkpoint.storage.s3Bucket", "type s3 needs s3Bucket"),
    Case(
        "a bucket with its scheme", storage(type="s3", s3Bucket="s3://ml"), "spec.checkpoint.storage.s3Bucket", "match"
    ),
    Case(
        "a bucket without its type",
        storage(s3Bucket="ml-checkpoints"),
        "spec.checkpoint.storage.s3Bucket",
        "goes with type: s3 only",
    ),
    Case(
        "a region without s3",
        storage(type="gcs", gcsBucket="ml-checkpoints", region="eu"),
        "spec.checkpoint.storage.region",
        "goes with type: s3 only",
    ),
    Case("an endpoint", storage(type="s3", s3Bucket="ml-checkpoints", endpoint="http://minio.storage.svc:9000")),
    Case(
        "an endpoint without s3",
        storage(endpoint="http://minio:9000"),
        "spec.checkpoint.storage.endpoint",
        "goes with type: s3 only",
    ),
    Case(
        "an endpoint without a scheme",
        storage(type="s3", s3Bucket="ml-checkpoints", endpoint="minio:9000"),
        "spec.checkpoint.storage.endpoint",
        "https://minio",
    ),
    Case("gcs", storage(type="gcs", gcsBucket="ml-checkpoints")),
    Case("gcs without a bucket", storage(type="gcs"), "spec.checkpoint.storage.gcsBucket", "type gcs needs gcsBucket"),
    Case(
        "a gcs bucket for s3",
        storage(type="s3", s3Bucket="ml-checkpoints", gcsBucket="ml-checkpoints"),
        "spec.checkpoint.storage.gcsBucket",
        "goes with type: gcs only",
    ),
    Case("azure", storage(type="azure", azureContainer="checkpoints", azureAccount="mlaccount")),
    Case(
        "azure without a container",
        storage(type="azure", azureAccount="mlaccount"),
        "spec.checkpoint.storage.azureContainer",
        "type azure needs azureContainer",
    ),
    Case(
        "azure without an account",
        storage(type="azure", azureContainer="checkpoints"),
        "spec.checkpoint.storage.azureAccount",
        "type azure needs azureAccount",
    ),
    Case(
        "a container for a claim",
        storage(azureContainer="checkpoints"),
        "spec.checkpoint.storage.azureContainer",
        "goes with type: azure only",
    ),
    Case(
        "an account for a claim",
        storage(azureAccount="mlaccount"),
        "spec.checkpoint.storage.azureAccount",
        "goes with type: azure only",
    ),
    Case("nfs", storage(type="nfs", nfsServer="10.0.0.9", nfsPath="/exports/ml")),
    Case(
        "nfs without a server",
        storage(type="nfs", nfsPath="/exports/ml"),
        "spec.checkpoint.storage.nfsServer",
        "type nfs needs nfsServer",
    ),
    Case(
        "nfs without a path",
        storage(type="nfs", nfsServer="nfs"),
        "spec.checkpoint.storage.nfsPath",
        "type nfs needs nfsPath",
    ),
    Case(
        "an nfs server for a claim",
        storage(nfsServer="nfs"),
        "spec.checkpoint.storage.nfsServer",
        "goes with type: nfs only",
    ),
    Case(
        "an nfs path for a claim",
        storage(nfsPath="/exports"),
        "spec.checkpoint.storage.nfsPath",
        "goes with type: nfs only",
    ),
    Case(
        "a claim's name for s3",
        storage(type="s3", s3Bucket="ml-checkpoints", pvcName="scratch"),
        "spec.checkpoint.storage.pvcName",
        "goes with type: pvc only",
    ),
    Case(
        "a claim's size for s3",
        storage(type="s3", s3Bucket="ml-checkpoints", size="1Gi"),
        "spec.checkpoint.storage.size",
        "goes with type: pvc only",
    ),
    Case(
        "a claim's class for s3",
        storage(type="s3", s3Bucket="ml-checkpoints", storageClassName="fast"),
        "spec.checkpoint.storage.storageClassName",
        "goes with type: pvc only",
    ),
    Case(
        "credentials for a claim",
        storage(secretRef={"name": "aws"}),
        "spec.checkpoint.storage.secretRef",
        "s3, gcs and azure only",
    ),
    Case("a prefix", storage(prefix="team-a/bert")),
    Case("a prefix that starts with a slash", storage(prefix="/team-a"), "spec.checkpoint.storage.prefix", "relative"),
    Case("a prefix that climbs", storage(prefix="team-a/../team-b"), "spec.checkpoint.storage.prefix", "relative"),
    Case("a storage that there is not", storage(type="ftp"), "spec.checkpoint.storage.type", "Unsupported value"),
]

IN_A_BUCKET: JSON = {
    "checkpoint": {"storage": {"type": "s3", "s3Bucket": "models"}},
    "podTemplate": {
        "volumes": [{"name": "data", "emptyDir": {}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/more/"}],
    },
}
CHECKPOINTS = [
    Case("a frequency and an interval", training_job({"checkpoint": {"frequency": 2, "interval": "1h30m"}})),
    Case(
        "an interval without a unit",
        training_job({"checkpoint": {"interval": "30"}}),
        "spec.checkpoint.interval",
        "with its units",
    ),
    Case(
        "an interval of no time",
        training_job({"checkpoint": {"interval": "0s"}}),
        "spec.checkpoint.interval",
        "from a second to a year",
    ),
    Case(
        "an interval of two years",
        training_job({"checkpoint": {"interval": "17520h"}}),
        "spec.checkpoint.interval",
        "from a second to a year",
    ),
    Case(
        "an interval beyond all time",
        training_job({"checkpoint": {"interval": "999999h999999h9h"}}),
        "spec.checkpoint.interval",
        "from a second to a year",
    ),
    Case("an interval of three days", training_job({"checkpoint": {"interval": "72h"}})),
    Case(
        "an interval in days",
        training_job({"checkpoint": {"interval": "3d"}}),
        "spec.checkpoint.interval",
        "with its units",
    ),
    Case(
        "no checkpoint kept",
        training_job({"checkpoint": {"retention": 0}}),
        "spec.checkpoint.retention",
        "greater than or equal to 1",
    ),
    Case(
        "resuming from another store than the own",
        training_job({"checkpoint": {"resumeFrom": "s3://old/bert/epoch-3"}}),
    ),
    Case("resuming from a path", training_job({"checkpoint": {"resumeFrom": "/checkpoints/bert"}})),
    Case("resuming from a path from the volume's root", training_job({"checkpoint": {"resumeFrom": "bert/epoch-3"}})),
    *(
        Case(
            f"resuming from {path}",
            training_job({"checkpoint": {"resumeFrom": path}}),
            "spec.checkpoint.resumeFrom",
            "without '.' or '..'",
        )
        for path in (
            "/",
            "/a/../b",
            "../b",
            "a/./b",
            "//a",
            "s3://bucket/../a",
            "s3://bucket//a",
            "s3:/bucket/a",
            "/a b",
        )
    ),
    *(
        Case(f"resuming from the image {image}", training_job({"checkpoint": {"resumeFrom": f"oci://{image}"}}))
        for image in (
            f"registry.example.com/team/checkpoints@sha256:{'a' * 64}",
            "registry.example.com:5000/checkpoints:nightly-trainer-000003-20261118T120000Z",
            "127.0.0.1:45131/checkpoints:t1",
            "localhost/a:t",
            "registry:5000/a/b.c/d__e:t",
        )
    ),
    *(
        Case(
            f"resuming from the image {image}",
            training_job({"checkpoint": {"resumeFrom": f"oci://{image}"}}),
            "spec.checkpoint.resumeFrom",
            "by its digest or its tag",
        )
        for image in (
            "",
            "registry.example.com/checkpoints",
            "registry.example.com/Checkpoints:t",
            "registry.example.com:t",
            "registry.example.com/a@sha256:abc",
            f"registry.example.com/a:t@sha256:{'a' * 64}",
            "registry.example.com/../a:t",
            "user:word@registry.example.com/a:t",
            "checkpoints/a:t",
            "registry.example.com/a b:t",
        )
    ),
    Case(
        "a Secret of a store beside an image",
        training_job({"checkpoint": {"resumeFrom": "oci://localhost/a:t", "storage": {"secretRef": {"name": "keys"}}}}),
        "spec.checkpoint.storage.secretRef",
        "unless resumeFrom is in an object store",
    ),
    Case(
        "resuming from azure",
        training_job({"checkpoint": {"resumeFrom": "az://models/bert", "storage": {"azureAccount": "acc"}}}),
    ),
    Case(
        "resuming from an azure account that is not named",
        training_job({"checkpoint": {"resumeFrom": "az://models/bert"}}),
        "spec.checkpoint.storage.azureAccount",
        "needs storage.azureAccount",
    ),
    Case(
        "resuming from a bucket with all that it takes to reach it",
        training_job(
            {
                "checkpoint": {
                    "resumeFrom": "s3://old/bert",
                    "storage": {"region": "eu-west-1", "endpoint": "http://minio:9000", "secretRef": {"name": "keys"}},
                }
            }
        ),
    ),
    Case(
        "the region of another bucket than the one resumed from",
        training_job({"checkpoint": {"resumeFrom": "gs://old/bert", "storage": {"region": "eu-west-1"}}}),
        "spec.checkpoint.storage.region",
        "goes with type: s3 only, or with a resumeFrom of s3://",
    ),
    Case(
        "credentials for resuming from a path",
        training_job({"checkpoint": {"resumeFrom": "/old/bert", "storage": {"secretRef": {"name": "keys"}}}}),
        "spec.checkpoint.storage.secretRef",
        "unless resumeFrom is in an object store",
    ),
    *(
        Case(
            f"resuming from {path} beside a bucket",
            training_job({**IN_A_BUCKET, "checkpoint": {**IN_A_BUCKET["checkpoint"], "resumeFrom": path}}),
            "spec.checkpoint.resumeFrom",
            "mount the volume that holds it",
        )
        for path in ("/old/bert", "/data2/bert", "data/bert")
    ),
    *(
        Case(
            f"resuming from {path} on a volume of one's own beside a bucket",
            training_job({**IN_A_BUCKET, "checkpoint": {**IN_A_BUCKET["checkpoint"], "resumeFrom": path}}),
        )
        for path in ("/data", "/data/bert/epoch-3", "/more/bert")
    ),
    Case(
        "resuming from the web",
        training_job({"checkpoint": {"resumeFrom": "https://example.com/bert"}}),
        "spec.checkpoint.resumeFrom",
        "s3://bucket/path",
    ),
    Case(
        "resuming from a whole bucket",
        training_job({"checkpoint": {"resumeFrom": "s3://bucket"}}),
        "spec.checkpoint.resumeFrom",
        "s3://bucket/path",
    ),
    Case(
        "resuming with checkpoints switched off",
        training_job({"checkpoint": {"enabled": False, "resumeFrom": "/checkpoints/bert"}}),
        "spec.checkpoint.resumeFrom",
        "switched off",
    ),
]

NETWORKING = [
    Case("mpi", training_job({"networking": {"backend": "mpi"}}), "spec.networking.backend", "mpi is not supported"),
    Case("RDMA over nccl", training_job({"networking": {"backend": "nccl", "rdmaEnabled": True}})),
    Case(
        "RDMA over gloo",
        training_job({"networking": {"backend": "gloo", "rdmaEnabled": True}}),
        "spec.networking.rdmaEnabled",
        "by nccl only",
    ),
    Case(
        "one port for two things",
        training_job({"networking": {"masterPort": 9000}, "monitoring": {"metricsPort": 9000}}),
        "spec.networking.masterPort",
        "choose two ports",
    ),
    *(
        Case(f"{port} on the sidecar's", training_job({block: {port: number}}), f"spec.{block}.{port}", "8470 and 8471")
        for block, port, number in (("networking", "masterPort", 8470), ("monitoring", "metricsPort", 8471))
    ),
    Case(
        "the meeting point on the default metrics port",
        training_job({"networking": {"masterPort": 8080}}),
        "spec.networking.masterPort",
        "choose two ports",
    ),
    Case(
        "metrics on the default meeting point",
        training_job({"monitoring": {"metricsPort": 29500}}),
        "spec.networking.masterPort",
        "choose two ports",
    ),
]

MONITORING = [
    Case(
        "TensorBoard beside checkpoints", training_job({"monitoring": {"tensorboardEnabled": True}, "checkpoint": {}})
    ),
    Case(
        "TensorBoard without checkpoints",
        training_job({"monitoring": {"tensorboardEnabled": True}}),
        "spec.monitoring.tensorboardEnabled",
        "add a checkpoint block",
    ),
    Case(
        "TensorBoard with checkpoints switched off",
        training_job({"monitoring": {"tensorboardEnabled": True}, "checkpoint": {"enabled": False}}),
        "spec.monitoring.tensorboardEnabled",
        "add a checkpoint block",
    ),
    Case(
        "TensorBoard without monitoring",
        training_job({"monitoring": {"enabled": False, "tensorboardEnabled": True}, "checkpoint": {}}),
        "spec.monitoring.tensorboardEnabled",
        "part of monitoring",
    ),
    Case("a success policy", training_job({"successPolicy": {"earlyStoppingPatience": 3}, "monitoring": {}})),
    Case(
        "an empty success policy",
        training_job({"successPolicy": {}}),
        "spec.successPolicy",
        "write targetAccuracy, earlyStoppingPatience or both",
    ),
    Case(
        "a success policy without metrics",
        training_job({"successPolicy": {"targetAccuracy": 0.9}, "monitoring": {"enabled": False}}),
        "spec.successPolicy",
        "the metrics that monitoring collects",
    ),
    Case("a hang that is looked for", training_job({"progressDeadlineSeconds": 600})),
    Case(
        "a hang that nobody can see",
        training_job({"progressDeadlineSeconds": 600, "monitoring": {"enabled": False}}),
        "spec.progressDeadlineSeconds",
        "the progress that monitoring collects",
    ),
]
