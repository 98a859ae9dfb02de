"""The golden files: the Jobs that the examples get, as a person has read them.

`python -m tests.gpuworkload.objects.golden` writes them anew; read the difference before you keep it.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus
from holdfast.api.manifests import documents
from holdfast.api.schema.validation import validate_object
from holdfast.gpuworkload.job import workload_job
from holdfast.gpuworkload.snapshot import job_name, reservation_id
from tests.trainingjob.objects.family import DEFAULTS
from tests.trainingjob.objects.golden import FIXTURES, NAMESPACE, written
from tests.trainingjobs import UID

EXAMPLES = ("plain", "full")
NODE = "gpu-3"


def example(name: str) -> GPUWorkload:
    """The manifest as the API server would store it, with a node chosen."""
    (document,) = documents((FIXTURES / f"gpuworkloads/{name}.yaml").read_text())
    workload = msgspec.convert(validate_object(document), GPUWorkload)
    status = GPUWorkloadStatus(phase="Scheduling", assigned_node=NODE, job_name=job_name(workload, 0))
    metadata = structs.replace(workload.metadata, namespace=NAMESPACE, uid=UID)
    return structs.replace(workload, metadata=metadata, status=status)


def made(workload: GPUWorkload) -> dict[str, Any]:
    """Its Job as it goes over the wire."""
    body = workload_job(workload, DEFAULTS, reservation_id(workload, 0))
    job: dict[str, Any] = json.loads(msgspec.json.encode({"apiVersion": "batch/v1", "kind": "Job", **body}))
    return job


def golden(name: str) -> Path:
    return FIXTURES / f"gpuworkloads/{name}.job.yaml"


if __name__ == "__main__":
    for each in EXAMPLES:
        golden(each).write_text(written([made(example(each))]))
