"""What the schema alone says: types, bounds, enums, keys, names."""

from typing import Any

from tests.api.cases.objects import JSON, Case, Report, gpu_workload, merged, spot_job, spot_vm, training_job, variable

CONDITION = {
    "type": "Running",
    "status": "True",
    "reason": "WorkersReady",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def _with_top_level(document: JSON, **fields: Any) -> JSON:
    return {**document, **fields}


TYPES = [
    Case("the least that a TrainingJob needs", training_job()),
    Case("a whole number written with a point", training_job({"gpusPerWorker": 2.0})),
    Case(
        "a null stands for a field that is not written",
        _with_top_level(
            training_job(), spec={"model": "m", "dataset": "d", "numWorkers": 1, "image": None, "framework": None}
        ),
    ),
    Case(
        "a null in place of a required field",
        _with_top_level(training_job(), spec={"model": None, "dataset": "d", "numWorkers": 1}),
        "spec.model",
        "Required value",
    ),
    Case("no model", training_job({"model": None}), "spec.model", "Required value"),
    Case("no spec", {k: v for k, v in training_job().items() if k != "spec"}, "spec", "Required value"),
    Case("a spec that is a list", _with_top_level(training_job(), spec=[]), "spec", "must be of type object"),
    Case("no workers", training_job({"numWorkers": 0}), "spec.numWorkers", "greater than or equal to 1"),
    Case("too many workers", training_job({"numWorkers": 101}), "spec.numWorkers", "less than or equal to 100"),
    Case("a hundred workers", training_job({"numWorkers": 100})),
    Case("workers in words", training_job({"numWorkers": "2"}), "spec.numWorkers", 'must be of type integer: "string"'),
    Case("half a worker", training_job({"numWorkers": 1.5}), "spec.numWorkers", "must be of type int"),
    Case("true workers", training_job({"numWorkers": True}), "spec.numWorkers", "must be of type int"),
    Case("a misspelt field", training_job({"numWorker": 2}), "spec.numWorker", 'unknown field "spec.numWorker"'),
    Case(
        "a misspelt field deep inside",
        training_job({"env": [{"name": "A", "vlaue": "b"}]}),
        "spec.env[0].vlaue",
        'unknown field "spec.env[0].vlaue"',
    ),
    Case("an unknown field beside spec", _with_top_level(training_job(), specs={}), "specs", 'unknown field "specs"'),
    Case(
        "an unknown field in metadata",
        merged(training_job(), {"metadata": {"labls": {}}}),
        "metadata.labls",
        'unknown field "metadata.labls"',
    ),
    Case(
        "an unknown framework",
        training_job({"framework": "torch"}),
        "spec.framework",
        'Unsupported value: "torch": supported values: "jax", "pytorch", "tensorflow"',
    ),
    Case(
        "a number where a string belongs",
        training_job({"env": [{"name": "A", "value": 1}]}),
        "spec.env[0].value",
        "must be of type string",
    ),
    Case(
        "a string where a boolean belongs", training_job({"suspend": "yes"}), "spec.suspend", "must be of type boolean"
    ),
    Case("a string where a list belongs", training_job({"command": "python"}), "spec.command", "must be of type array"),
    Case(
        "a number in a map of strings",
        training_job({"hyperparameters": {"additionalParams": {"decay": 0.01}}}),
        "spec.hyperparameters.additionalParams.decay",
        "must be of type string",
    ),
    Case("a learning rate that is a whole number", training_job({"hyperparameters": {"learningRate": 1}})),
    Case(
        "a learning rate of zero",
        training_job({"hyperparameters": {"learningRate": 0}}),
        "spec.hyperparameters.learningRate",
        "greater than 0",
    ),
    Case(
        "an accuracy above one",
        training_job({"successPolicy": {"targetAccuracy": 1.01}}),
        "spec.successPolicy.targetAccuracy",
        "less than or equal to 1",
    ),
    Case("an accuracy of exactly one", training_job({"successPolicy": {"targetAccuracy": 1}})),
    Case("an amount as a number", training_job({"resources": {"limits": {"cpu": 4}}})),
    Case(
        "an amount as a fraction",
        training_job({"resources": {"limits": {"cpu": 0.5}}}),
        "spec.resources.limits.cpu",
        "must be of type integer,string",
    ),
    Case(
        "an amount in words",
        training_job({"resources": {"limits": {"memory": "64 GB"}}}),
        "spec.resources.limits.memory",
        "should match",
    ),
    Case("an empty model", training_job({"model": ""}), "spec.model", "at least 1 chars long"),
    Case("an image of two words", training_job({"image": "my image"}), "spec.image", "should match"),
    Case("a model of a long name", training_job({"model": "m" * 254}), "spec.model", "Too long"),
    Case("too many arguments", training_job({"args": ["-v"] * 257}), "spec.args", "Too many: 257"),
    Case(
        "too many labels to select by",
        training_job({"scheduling": {"nodeSelector": {f"l{n}": "x" for n in range(65)}}}),
        "spec.scheduling.nodeSelector",
        "Too many: 65",
    ),
    Case(
        "a variable twice",
        training_job({"env": [variable(), variable("B"), variable()]}),
        "spec.env[2]",
        'Duplicate value: {"name":"GREETING"}',
    ),
    Case(
        "a zone twice",
        spot_vm({"zones": ["us-central1-b", "us-central1-b"]}),
        "spec.zones[1]",
        'Duplicate value: "us-central1-b"',
    ),
    Case(
        "no alternatives of nodes",
        training_job(
            {
                "scheduling": {
                    "affinity": {
                        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
                    }
                }
            }
        ),
        "spec.scheduling.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
        "at least 1 items",
    ),
    Case(
        "a negative wait",
        training_job({"ttlSecondsAfterFinished": -1}),
        "spec.ttlSecondsAfterFinished",
        "greater than or equal to 0",
    ),
    Case("a wait beyond 32 bits", training_job({"ttlSecondsAfterFinished": 2**40})),
    Case(
        "a deadline of nothing",
        training_job({"failurePolicy": {"activeDeadlineSeconds": 0}}),
        "spec.failurePolicy.activeDeadlineSeconds",
        "greater than or equal to 1",
    ),
    Case(
        "a port out of range",
        training_job({"networking": {"masterPort": 70000}}),
        "spec.networking.masterPort",
        "less than or equal to 65535",
    ),
    Case(
        "a label that is a number",
        merged(training_job(), {"metadata": {"labels": {"team": "a b"}}}),
        "metadata.labels",
        "Invalid value",
    ),
    Case("a status that the user has written", _with_top_level(training_job(), status={"state": "Running"})),
]

NAMES = [
    Case("a name of 46 letters", training_job(name="a" * 46)),
    Case("a name of 47 letters", training_job(name="a" * 47), "metadata.name", "at most 46"),
    Case("a name that starts with a digit", training_job(name="7b"), "metadata.name", "starting with a letter"),
    Case("a name with a dot", training_job(name="a.b"), "metadata.name", "at most 46"),
    Case("a name in upper case", training_job(name="Bert"), "metadata.name", "Invalid value"),
    Case("a workload's long name", gpu_workload(name="a" * 47), "metadata.name", "at most 46"),
    Case("a spot job's long name", spot_job(name="a" * 47), "metadata.name", "at most 46"),
    Case("a machine template's long name", merged(spot_vm(), {"metadata": {"name": "a" * 60}})),
    Case("a name that the server completes", {**training_job(), "metadata": {"generateName": "bert-"}}),
    Case(
        "a prefix that leaves no room",
        {**training_job(), "metadata": {"generateName": "a" * 45}},
        "metadata.name",
        "at most 46",
    ),
]

STATUSES = [
    Report("a state", {"state": "Running", "workers": {"active": 2}, "metrics": {"loss": 1, "accuracy": 0.9}}),
    Report("a time with a fraction and an offset", {"startTime": "2026-01-01T00:00:00.25+02:00"}),
    Report("an unknown state", {"state": "Sleeping"}, "status.state"),
    Report("a day", {"startTime": "2026-01-01"}, "status.startTime"),
    Report("a metric in words", {"metrics": {"loss": "low"}}, "status.metrics.loss"),
    Report("a negative count", {"workers": {"active": -1}}, "status.workers.active"),
    Report("half a condition", {"conditions": [{"type": "Running", "status": "True"}]}, "status.conditions[0].reason"),
    Report("a condition that may be", {"conditions": [CONDITION | {"status": "Maybe"}]}, "status.conditions[0].status"),
    Report("a condition twice", {"conditions": [CONDITION, CONDITION]}, "status.conditions[1]"),
    Report("a misspelt field", {"stat": "Running"}, "status.stat"),
]
