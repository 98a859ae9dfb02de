"""TrainingJobs as YAML, for kubectl."""

from typing import Any

import yaml


def training_job(name: str, *, run_for: str = "", exit_code: int = 0, **spec: Any) -> str:
    """Two workers that run until they are told, or for `run_for`."""
    annotations = {"kwok.holdfast.dev/run-for": run_for, "kwok.holdfast.dev/exit-code": str(exit_code)}
    body = {
        "apiVersion": "ml.example.com/v1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "model": "cnn",
            "dataset": "mnist",
            "numWorkers": 2,
            "gpusPerWorker": 0,
            **({"podTemplate": {"annotations": annotations}} if run_for else {}),
            **spec,
        },
    }
    return yaml.safe_dump(body)
