"""The rules of the kinds around spot machines and container checkpoints."""

from tests.api.cases.objects import JSON, Case, backup, instance, spot_job, spot_vm

NO_CONTAINERS: JSON = {"spec": {"template": {"spec": {"containers": []}}}}
CONFIG = "spec.checkpointConfig."
SUBNETWORK = "projects/my-host-project/regions/us-central1/subnetworks/gpus"
STORE = f"{CONFIG}checkpointStorage."
TEMPLATE: JSON = {
    "spec": {"suspend": None, "template": {"spec": {"containers": [{"name": "a", "x": [1, None]}], "z": 1}}}
}
SPOT = [
    Case("a template with fields of its own", {**spot_job(), "spec": {**spot_job()["spec"], "jobTemplate": TEMPLATE}}),
    Case("the least that a SpotInstanceJob needs", spot_job()),
    Case(
        "a template without containers",
        spot_job({"jobTemplate": NO_CONTAINERS}),
        "spec.jobTemplate.spec.template.spec.containers",
        "at least 1 items",
    ),
    Case(
        "a template without a spec",
        spot_job({"jobTemplate": {"spec": None}}),
        "spec.jobTemplate.spec",
        "Required value",
    ),
    Case(
        "a template that always restarts",
        spot_job({"jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Always"}}}}}),
        "spec.jobTemplate.spec.template.spec.restartPolicy",
        "Unsupported value",
    ),
    Case("no replicas", spot_job({"replicas": 0}), "spec.replicas", "greater than or equal to 1"),
    Case(
        "an interval in words",
        spot_job({"checkpointConfig": {"checkpointInterval": "hourly"}}),
        "spec.checkpointConfig.checkpointInterval",
        "with its units",
    ),
    Case(
        "a repository with a scheme",
        spot_job({"checkpointConfig": {"checkpointImageRepo": "https://gcr.io/p/c"}}),
        "spec.checkpointConfig.checkpointImageRepo",
        "without scheme and tag",
    ),
    Case(
        "a repository with a tag",
        spot_job({"checkpointConfig": {"checkpointImageRepo": "gcr.io/p/c:latest"}}),
        "spec.checkpointConfig.checkpointImageRepo",
        "without scheme and tag",
    ),
    Case("a repository on a port", spot_job({"checkpointConfig": {"checkpointImageRepo": "localhost:5000/c"}})),
    *(
        Case(f"the interval {text!r}", spot_job({"checkpointConfig": {"checkpointInterval": text}}))
        for text in ("auto", "1s", "1h30m", "8760h")
    ),
    *(
        Case(
            f"the interval {text!r}",
            spot_job({"checkpointConfig": {"checkpointInterval": text}}),
            "spec.checkpointConfig.checkpointInterval",
            'or "auto"',
        )
        for text in ("Auto", "automatic", "0s", "30 minutes", "8761h", "")
    ),
    Case(
        "a mode that is none", spot_job({"checkpointConfig": {"mode": "memory"}}), CONFIG + "mode", "Unsupported value"
    ),
    Case("no images kept", spot_job({"checkpointConfig": {"retention": 0}}), CONFIG + "retention", "or equal to 1"),
    Case(
        "every field of a job",
        spot_job(
            {
                "suspend": True,
                "ttlSecondsAfterFinished": 0,
                "checkpointConfig": {"mode": "application", "retention": 1, "checkpointStorage": {"bucket": "b"}},
                "jobTemplate": {"spec": {"backoffLimit": 0, "activeDeadlineSeconds": 60}},
            }
        ),
    ),
    *(
        Case(
            f"a Job with {name} {count}",
            spot_job({"jobTemplate": {"spec": {name: count}}}),
            "" if count == 1 else f"spec.jobTemplate.spec.{name}",
            "a replica is one pod",
        )
        for name in ("completions", "parallelism")
        for count in (0, 1, 2)
    ),
    Case(
        "a backoffLimit below 0",
        spot_job({"jobTemplate": {"spec": {"backoffLimit": -1}}}),
        "spec.jobTemplate.spec.backoffLimit",
        "greater than or equal to 0",
    ),
    *(
        Case(f"a store: {store}", spot_job({"checkpointConfig": {"checkpointStorage": store}}))
        for store in (
            {"type": "gcs", "bucket": "my-checkpoints", "pathPrefix": "team-a/bert", "secretRef": {"name": "gcs"}},
            {"type": "s3", "bucket": "my-checkpoints", "region": "eu-central-1", "endpoint": "http://minio:9000"},
            {"type": "azure", "bucket": "checkpoints", "azureAccount": "researchtraining"},
        )
    ),
    *(
        Case(f"a store: {store}", spot_job({"checkpointConfig": {"checkpointStorage": store}}), STORE + field, says)
        for store, field, says in (
            ({"type": "pvc", "bucket": "b"}, "type", "Unsupported value"),
            ({"type": "gcs"}, "bucket", "name the bucket"),
            ({"bucket": "b", "pathPrefix": "/a"}, "pathPrefix", "write a relative folder"),
            ({"bucket": "b", "pathPrefix": "a/../b"}, "pathPrefix", "write a relative folder"),
            ({"type": "azure", "bucket": "b"}, "azureAccount", "that type needs it"),
            ({"type": "s3", "bucket": "b", "azureAccount": "research"}, "azureAccount", "goes with type: azure"),
            ({"type": "gcs", "bucket": "b", "region": "eu-central-1"}, "type", "with type: s3 only"),
            ({"type": "azure", "bucket": "b", "azureAccount": "abc", "endpoint": "http://b"}, "type", "type: s3 only"),
            ({"type": "s3", "bucket": "b", "endpoint": "minio:9000"}, "endpoint", "S3-compatible server"),
        )
    ),
    Case(
        "a store for containers that are frozen",
        spot_job({"checkpointConfig": {"mode": "container", "checkpointStorage": {"bucket": "b"}}}),
        "spec.checkpointConfig.checkpointStorage",
        "remove checkpointStorage",
    ),
    Case("no machine template", spot_job({"spotInstanceVMRef": None}), "spec.spotInstanceVMRef", "Required value"),
    Case("the least that a SpotInstanceVM needs", spot_vm()),
    Case(
        "a machine with everything",
        spot_vm(
            {
                "gpu": {"type": "nvidia-tesla-t4", "count": 1},
                "gcp": {
                    "region": "us-central1",
                    "networkTags": ["gpu"],
                    "serviceAccount": "vm@my-gcp-project.example",
                    "network": "projects/my-host-project/global/networks/shared",
                    "subnetwork": "gpus",
                    "externalIP": False,
                    "minCpuPlatform": "Intel Cascade Lake",
                    "maxRunDuration": "24h",
                },
                "zones": ["us-central1-b", "us-east1-c"],
                "startupScript": "#!/bin/sh\n",
                "kubeadmJoinConfig": {
                    "tokenSecretRef": {"name": "join"},
                    "caCertHash": "sha256:" + "0a" * 32,
                    "controlPlaneEndpoint": "10.0.0.2:6443",
                },
                "ssh": {"user": "ubuntu", "keySecretRef": {"name": "ssh"}},
                "preemptible": False,
            }
        ),
    ),
    Case("a GPU of no count", spot_vm({"gpu": {"type": "nvidia-tesla-t4"}}), "spec.gpu.count", "Required value"),
    Case("a zone of another region", spot_vm({"gcp": {"region": "europe-west4"}}), "spec.gcp.zone", "another region"),
    Case(
        "a zone of a region with a longer name",
        spot_vm({"gcp": {"zone": "us-central11-a", "region": "us-central1"}}),
        "spec.gcp.zone",
        "another region",
    ),
    Case("a fallback to the same zone", spot_vm({"zones": ["us-central1-a"]}), "spec.zones", "leave gcp.zone out"),
    Case("a login without a token", spot_vm({"ssh": {"user": "ubuntu", "keySecretRef": {"name": "k"}}})),
    *(
        Case(f"a machine with {field} {text!r}", spot_vm({"gcp": {field: text}}), f"spec.gcp.{field}", says)
        for field, text, says in (
            ("network", "my network", "should match"),
            ("network", "projects/p/networks/n", "should match"),
            ("subnetwork", "regions/us-central1/subnetworks/gpus", "should match"),
            ("minCpuPlatform", "Intel  Cascade", "should match"),
            ("preemptionNotice", "2 minutes", "from a second to 10 minutes"),
            ("preemptionNotice", "11m", "from a second to 10 minutes"),
            ("maxRunDuration", "20s", "from 30 seconds to 120 days"),
            ("maxRunDuration", "2881h", "from 30 seconds to 120 days"),
        )
    ),
    Case("a notice of two minutes", spot_vm({"gcp": {"preemptionNotice": "120s"}})),
    Case(
        "a notice on demand",
        spot_vm({"gcp": {"preemptionNotice": "120s"}, "preemptible": False}),
        "spec.gcp.preemptionNotice",
        "remove preemptionNotice",
    ),
    Case("a subnetwork's path", spot_vm({"gcp": {"subnetwork": SUBNETWORK}, "zones": ["us-central1-b"]})),
    Case("a subnetwork's name in two regions", spot_vm({"gcp": {"subnetwork": "gpus"}, "zones": ["us-east1-c"]})),
    Case(
        "a subnetwork of another region",
        spot_vm({"gcp": {"subnetwork": SUBNETWORK, "zone": "us-central11-a"}}),
        "spec.gcp.zone",
        "write its name alone",
    ),
    Case(
        "a subnetwork of another region than an alternative",
        spot_vm({"gcp": {"subnetwork": SUBNETWORK}, "zones": ["us-central1-b", "us-east1-c"]}),
        "spec.zones",
        "write its name alone",
    ),
    Case(
        "a hash that is none",
        spot_vm({"kubeadmJoinConfig": {"tokenSecretRef": {"name": "join"}, "caCertHash": "sha256:abc"}}),
        "spec.kubeadmJoinConfig.caCertHash",
        "should match",
    ),
    Case("a machine", instance({"jobRef": {"name": "spot"}, "replica": 1})),
    Case(
        "a machine with all that deletes it",
        instance({"project": "my-gcp-project", "credentialsSecretRef": {"name": "gcp", "namespace": "cloud"}}),
    ),
    Case("a machine of a project that is none", instance({"project": "My Project"}), "spec.project", "should match"),
    Case("a machine without its template", instance({"vmRef": None}), "spec.vmRef", "Required value"),
]

BACKUPS = [
    *(
        Case(f"the schedule {text!r}", backup({"schedule": text}))
        for text in ("immediately", "*/30 * * * *", "@hourly", "0 4 * * 1-5", "15,45 0-6/2 1 jan,JUL sun", "0  0 1 1 *")
    ),
    *(
        Case(f"the schedule {text!r}", backup({"schedule": text}), "spec.schedule", "a cron expression of five fields")
        for text in (
            "now",
            "* * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "@often",
            "* * * * * *",
            "Immediately",
            "*/0 * * * *",
            "* * * * *\n",
        )
    ),
    Case("the older version", backup(version="v1alpha1")),
    Case("no pod", backup({"podRef": None}), "spec.podRef", "Required value"),
    Case(
        "a registry with a path",
        backup({"registry": {"url": "gcr.io/my-project"}}),
        "spec.registry.url",
        "the path belongs in repository",
    ),
    Case("a registry with a scheme", backup({"registry": {"url": "https://registry.example.com:5000"}})),
    Case(
        "a repository in upper case",
        backup({"registry": {"repository": "My/Repo"}}),
        "spec.registry.repository",
        "in lower case",
    ),
    *(
        Case(
            f"an image on the host of {url}",
            backup(
                {
                    "registry": {"url": url},
                    "containers": [{"name": "a", "image": "example.com:5000/a/b"}, {"name": "b"}],
                }
            ),
        )
        for url in ("example.com:5000", "https://example.com:5000", "http://example.com:5000/")
    ),
    *(
        Case(
            f"an image on another host: {image}",
            backup({"registry": {"url": "https://example.com"}, "containers": [{"name": "a", "image": image}]}),
            "spec.containers",
            "write images on the host of registry.url",
        )
        for image in ("other.com/a", "example.com:5000/a", "example.com", "example.community/a", "a/example.com/b")
    ),
    Case("every field of a run", backup({"mode": "container", "timeZone": "Europe/Berlin", "suspend": True})),
    Case("a mode that is none", backup({"mode": "memory"}), "spec.mode", "Unsupported value"),
    Case("no time for a run", backup({"timeoutSeconds": 9}), "spec.timeoutSeconds", "greater than or equal to 10"),
    Case("all images kept", backup({"retain": 0, "timeoutSeconds": 10, "compression": "zstd"})),
    Case("fewer than no images kept", backup({"retain": -1}), "spec.retain", "greater than or equal to 0"),
    Case(
        "a container twice",
        backup({"containers": [{"name": "a"}, {"name": "a"}]}),
        "spec.containers[1]",
        "Duplicate value",
    ),
]
