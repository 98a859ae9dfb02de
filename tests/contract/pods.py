"""Jobs and pods of the tests' own: bound to the nodes of one pool, so that tests don't share machines."""

from collections.abc import Mapping
from typing import Any

from holdfast.cluster.protocol import JSON

POOL = "contract.holdfast.dev/pool"
INDEX = "batch.kubernetes.io/job-completion-index"


def pod_spec(pool: str, *, requests: Mapping[str, str] | None = None, **more: Any) -> JSON:
    resources = {"requests": dict(requests or {}), "limits": dict(requests or {})}
    return {
        "nodeSelector": {POOL: pool},
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "registry.invalid/main:1", "resources": resources}],
        **more,
    }


def pod(name: str, pool: str, *, requests: Mapping[str, str] | None = None, **more: Any) -> JSON:
    return {"metadata": {"name": name}, "spec": pod_spec(pool, requests=requests, **more)}


def job(name: str, pool: str = "none", **spec: Any) -> JSON:
    return {"metadata": {"name": name}, "spec": {"template": {"spec": pod_spec(pool)}, **spec}}


def indexed(name: str, pool: str, workers: int, **spec: Any) -> JSON:
    return job(name, pool, completionMode="Indexed", completions=workers, parallelism=workers, **spec)
