"""Which fields may change when: for us and the API server."""

from tests.api.cases.objects import Change, backup, gpu_workload, instance, spot_job, spot_vm, training_job

RUNNING = {"state": "Running", "startTime": "2026-01-01T00:00:00Z"}
SUSPENDED = {**RUNNING, "state": "Suspended"}
COMPLETED = {**RUNNING, "state": "Completed"}
ELABORATE = training_job(
    {
        "gpusPerWorker": 1,
        "image": "training:1",
        "command": ["python"],
        "args": ["train.py"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "resources": {"limits": {"cpu": "4"}},
        "hyperparameters": {"epochs": 3, "learningRate": 0.1},
        "checkpoint": {"interval": "30m", "storage": {"size": "10Gi"}},
        "scheduling": {"nodeSelector": {"gpu": "a100"}},
        "monitoring": {"metricsPort": 9090},
        "networking": {"masterPort": 29501},
        "successPolicy": {"targetAccuracy": 0.9},
        "progressDeadlineSeconds": 600,
        "podTemplate": {"labels": {"team": "vision"}},
    }
)
SHAPING = {
    "gpusPerWorker": 2,
    "image": "training:2",
    "command": None,
    "args": ["other.py"],
    "env": [{"name": "A", "value": "1"}],
    "resources": {"limits": {"cpu": "8"}},
    "hyperparameters": {"learningRate": 0.2},
    "scheduling": None,
    "monitoring": {"enabled": True, "metricsPort": 9091},
    "networking": {"masterPort": 29502},
    "successPolicy": {"targetAccuracy": 0.8},
    "progressDeadlineSeconds": None,
    "podTemplate": {"labels": {"team": "language"}},
}
DEEPER = {
    "checkpoint.enabled": {"checkpoint": {"enabled": False}},
    "checkpoint.frequency": {"checkpoint": {"frequency": 2}},
    "checkpoint.interval": {"checkpoint": {"interval": "1h"}},
    "failurePolicy.restartPolicy": {"failurePolicy": {"restartPolicy": "Never"}},
}
IDENTITY = {
    "model": {"model": "other"},
    "dataset": {"dataset": "other"},
    "framework": {"framework": "jax"},
    "checkpoint.storage": {"checkpoint": {"storage": {"size": "20Gi"}}},
    "checkpoint.resumeFrom": {"checkpoint": {"resumeFrom": "/older"}},
}
SPECS = {**{name: {name: value} for name, value in SHAPING.items()}, **DEEPER}
SUSPEND_FIRST = "set spec.suspend: true"

TRAINING = [
    Change("anything before the start", ELABORATE, {}, {"spec": {**SHAPING, "model": "other"}}),
    Change("anything while pending", ELABORATE, {"state": "Pending"}, {"spec": {**SHAPING, "model": "other"}}),
    Change(
        "the model of a job that was suspended at once", ELABORATE, {"state": "Suspended"}, {"spec": {"model": "x"}}
    ),
    Change(
        "the model while the workers start",
        ELABORATE,
        {"state": "Initializing"},
        {"spec": {"model": "x"}},
        "spec.model",
        "create a new job",
    ),
    Change("nothing", ELABORATE, RUNNING, {}),
    Change("a label of a running job", ELABORATE, RUNNING, {"metadata": {"labels": {"team": "vision"}}}),
    *(
        Change(f"{name} while running", ELABORATE, RUNNING, {"spec": spec}, f"spec.{name}", SUSPEND_FIRST)
        for name, spec in SPECS.items()
    ),
    *(Change(f"{name} while suspended", ELABORATE, SUSPENDED, {"spec": spec}) for name, spec in SPECS.items()),
    *(
        Change(f"{name} while suspended", ELABORATE, SUSPENDED, {"spec": spec}, f"spec.{name}", "create a new job")
        for name, spec in IDENTITY.items()
    ),
    Change(
        "the image of a failed job", ELABORATE, {"state": "Failed"}, {"spec": {"image": "b"}}, "spec.image", "create"
    ),
    Change("the order of variables", ELABORATE, RUNNING, {"spec": {"env": ELABORATE["spec"]["env"][::-1]}}),
    Change("workers and suspend while running", ELABORATE, RUNNING, {"spec": {"numWorkers": 5, "suspend": True}}),
    Change("workers while restarting", ELABORATE, {**RUNNING, "state": "Restarting"}, {"spec": {"numWorkers": 5}}),
    Change("workers after the end", ELABORATE, COMPLETED, {"spec": {"numWorkers": 5}}, "spec.numWorkers", "has ended"),
    Change("suspend after the end", ELABORATE, COMPLETED, {"spec": {"suspend": True}}, "spec.suspend", "has ended"),
    Change("suspend written out after the end", ELABORATE, COMPLETED, {"spec": {"suspend": False}}),
    Change(
        "harmless fields while running",
        ELABORATE,
        RUNNING,
        {
            "spec": {
                "ttlSecondsAfterFinished": 60,
                "checkpoint": {"retention": 9},
                "failurePolicy": {"backoffLimit": 9, "activeDeadlineSeconds": 9},
            }
        },
    ),
    Change(
        "harmless fields after the end",
        ELABORATE,
        COMPLETED,
        {"spec": {"ttlSecondsAfterFinished": 60, "checkpoint": {"retention": 9}}},
    ),
    Change(
        "a first checkpoint block while running",
        training_job(),
        RUNNING,
        {"spec": {"checkpoint": {}}},
        "spec.checkpoint.enabled",
        SUSPEND_FIRST,
    ),
    Change("a value out of bounds", ELABORATE, RUNNING, {"spec": {"numWorkers": 0}}, "spec.numWorkers", "equal to 1"),
]

SCHEDULED = {"phase": "Scheduled"}
WORKLOAD = gpu_workload({"image": "a:1", "command": ["a"], "args": ["b"], "nodeSelector": {"zone": "a"}})
OTHERS = [
    Change("a waiting workload's GPUs", WORKLOAD, {"phase": "Pending"}, {"spec": {"gpuCount": 4}}),
    *(
        Change(
            f"a placed workload's {name}", WORKLOAD, SCHEDULED, {"spec": {name: value}}, f"spec.{name}", SUSPEND_FIRST
        )
        for name, value in {
            "modelName": "other",
            "gpuCount": 4,
            "schedulingStrategy": "random",
            "image": "a:2",
            "command": ["b"],
            "args": ["c"],
            "env": [{"name": "A"}],
            "resources": {"limits": {"cpu": 2}},
            "tolerations": [],
            "nodeSelector": {"zone": "b"},
        }.items()
    ),
    Change(
        "a placed workload's priority, retries and ttl",
        WORKLOAD,
        SCHEDULED,
        {"spec": {"priority": 9, "retryPolicy": {"maxRetries": 9}, "ttlSecondsAfterFinished": 9, "suspend": True}},
    ),
    Change(
        "suspend of a workload that has ended",
        WORKLOAD,
        {"phase": "Succeeded"},
        {"spec": {"suspend": True}},
        "spec.suspend",
        "has ended",
    ),
    Change(
        "a spot job's template before its replicas",
        spot_job(),
        {},
        {"spec": {"jobTemplate": {"spec": {"backoffLimit": 2}}}},
    ),
    *(
        Change(
            f"a running spot job's {name}",
            spot_job(),
            {"jobStatuses": [{"name": "spot-0"}]},
            {"spec": spec},
            f"spec.{name}",
            "create a new job",
        )
        for name, spec in {
            "jobTemplate": {"jobTemplate": {"spec": {"backoffLimit": 2}}},
            "checkpointConfig.checkpointImageRepo": {"checkpointConfig": {"checkpointImageRepo": "gcr.io/p/other"}},
            "spotInstanceVMRef": {"spotInstanceVMRef": {"name": "other"}},
            "checkpointConfig.mode": {"checkpointConfig": {"mode": "container"}},
            "checkpointConfig.checkpointStorage": {"checkpointConfig": {"checkpointStorage": {"bucket": "b"}}},
        }.items()
    ),
    Change(
        "a running spot job's replicas, interval, credential and the like",
        spot_job(),
        {"jobStatuses": [{"name": "spot-0"}]},
        {
            "spec": {
                "replicas": 3,
                "suspend": True,
                "ttlSecondsAfterFinished": 60,
                "gcpCredentialsSecretRef": {"name": "newer"},
                "checkpointConfig": {"checkpointInterval": "auto", "retention": 5},
            }
        },
    ),
    *(
        Change(
            f"{name} of a spot job that has ended",
            spot_job(),
            {"completionTime": "2026-01-01T00:00:00Z"},
            {"spec": {name: value}},
            f"spec.{name}",
            "has ended",
        )
        for name, value in {"replicas": 3, "suspend": True}.items()
    ),
    Change(
        "the ttl of a spot job that has ended",
        spot_job(),
        {"completionTime": "2026-01-01T00:00:00Z"},
        {"spec": {"ttlSecondsAfterFinished": 60, "suspend": False}},
    ),
    Change("a template's project without machines", spot_vm(), {}, {"spec": {"gcp": {"project": "other-project"}}}),
    Change(
        "a template's project with machines",
        spot_vm(),
        {"provisionedInstances": [{"name": "t4-0"}]},
        {"spec": {"gcp": {"project": "other-project"}}},
        "spec.gcp.project",
        "delete them first",
    ),
    Change(
        "a template's machine type with machines",
        spot_vm(),
        {"provisionedInstances": [{"name": "t4-0"}]},
        {"spec": {"gcp": {"machineType": "n1-standard-8"}}},
    ),
    Change("a machine's zone", instance(), {}, {"spec": {"zone": "us-central1-b"}}, "spec", "can't be changed"),
    Change(
        "a machine's credential",
        instance(),
        {},
        {"spec": {"credentialsSecretRef": {"name": "newer"}}},
        "spec",
        "can't be changed",
    ),
    Change("a machine's finalizer", instance(), {}, {"metadata": {"finalizers": ["holdfast.dev/machine"]}}),
    Change("a schedule", backup(), {"phase": "Completed"}, {"spec": {"schedule": "@daily", "stopPod": True}}),
    *(
        Change(
            f"{name} of a backup that has begun",
            backup(),
            {"phase": "Checkpointing"},
            {"spec": spec},
            f"spec.{name}",
            "create another",
        )
        for name, spec in {
            "podRef": {"podRef": {"name": "other"}},
            "resourceRef": {"resourceRef": {"apiVersion": "batch/v1", "kind": "Job", "name": "a"}},
        }.items()
    ),
    *(
        Change(
            f"{name} of an immediate backup that has begun",
            backup({"schedule": "immediately"}),
            {"phase": "Checkpointing"},
            {"spec": spec},
            f"spec.{name}",
            "taken once",
        )
        for name, spec in {
            "schedule": {"schedule": "@daily"},
            "stopPod": {"stopPod": True},
            "registry": {"registry": {"url": "quay.io"}},
            "containers": {"containers": [{"name": "a"}]},
            "mode": {"mode": "container"},
            "compression": {"compression": "zstd"},
        }.items()
    ),
    Change(
        "the pod of a run that has no phase yet",
        backup(),
        {"run": 1},
        {"spec": {"podRef": {"name": "other"}}},
        "spec.podRef",
        "create another",
    ),
    Change(
        "an immediate backup that has not begun", backup({"schedule": "immediately"}), {}, {"spec": {"stopPod": True}}
    ),
]

CHANGES = [*TRAINING, *OTHERS]
