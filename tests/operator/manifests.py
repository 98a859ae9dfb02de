"""Manifests for kubectl."""

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


def persistent_volume(name: str) -> str:
    """As large as a claim for checkpoints is by default. Nobody mounts it: the nodes are fake."""
    body = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": "/nowhere"},
        },
    }
    return yaml.safe_dump(body)
