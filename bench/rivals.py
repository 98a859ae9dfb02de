"""Who keeps workers running: holdfast, a plain Job, and Kubeflow's Training Operator v1 where it is at hand."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.control_plane.component import Component
from tests.control_plane.ports import free_ports
from tests.control_plane.probe import answers
from tests.control_plane.server import ADMINISTRATORS, ControlPlane

JSON = dict[str, Any]

# The program, else looked for on the PATH; and the file or folder of its resource definitions.
PROGRAM, DEFINITIONS = "HOLDFAST_TRAINING_OPERATOR", "HOLDFAST_TRAINING_OPERATOR_CRDS"
NOT_AT_HAND = f"not at hand (set {PROGRAM} to its program and {DEFINITIONS} to its resource definitions)"


WORKERS = 2
POD = {"restartPolicy": "Never", "containers": [{"name": "trainer", "image": "trainer"}]}


class Rival(Struct, frozen=True, kw_only=True):
    name: str
    path: str
    body: Callable[[str], JSON]
    owner: Callable[[str], str] = str
    """Whose the first pods are."""
    heir: Callable[[str], str] = str
    """Whose those are that come after a death."""
    reborn: int = 1
    """How many come."""


def training_job(name: str) -> JSON:
    spec = {"model": "cnn", "dataset": "mnist", "numWorkers": WORKERS, "gpusPerWorker": 1}
    return {"apiVersion": "ml.example.com/v1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": spec}


def job(name: str) -> JSON:
    indexed = {"completionMode": "Indexed", "completions": WORKERS, "parallelism": WORKERS}
    return {"metadata": {"name": name}, "spec": {**indexed, "template": {"spec": POD}}}


def pytorch_job(name: str) -> JSON:
    """ExitCode is the policy by which a killed pod is made anew."""
    template = {"spec": {"containers": [{"name": "pytorch", "image": "trainer"}]}}
    roles = {"Master": 1, "Worker": WORKERS - 1}
    replicas = {
        role: {"replicas": count, "restartPolicy": "ExitCode", "template": template} for role, count in roles.items()
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": replicas},
    }


HOLDFAST = Rival(
    name="holdfast",
    path="/apis/ml.example.com/v1/namespaces/default/trainingjobs",
    body=training_job,
    owner=lambda name: f"{name}-training",
    heir=lambda name: f"{name}-training-1",
    reborn=WORKERS,
)
JOB = Rival(name="job", path="/apis/batch/v1/namespaces/default/jobs", body=job)
KUBEFLOW = Rival(name="kubeflow", path="/apis/kubeflow.org/v1/namespaces/default/pytorchjobs", body=pytorch_job)


def training_operator() -> tuple[Path, Path] | None:
    """The program and its definitions, if both are there."""
    program = os.environ.get(PROGRAM) or shutil.which("training-operator")
    definitions = os.environ.get(DEFINITIONS)
    return (Path(program), Path(definitions)) if program and definitions else None


@contextmanager
def running(program: Path, definitions: Path, plane: ControlPlane, folder: Path) -> Iterator[None]:
    plane.kubectl("apply", "--server-side", f"--filename={definitions}")
    plane.kubectl("wait", "--for=condition=Established", f"--filename={definitions}")
    metrics, health, webhooks = free_ports(3)
    command = [
        str(program),
        f"--kubeconfig={plane.user('training-operator', ADMINISTRATORS)}",
        f"--metrics-bind-address=127.0.0.1:{metrics}",
        f"--health-probe-bind-address=127.0.0.1:{health}",
        f"--monitoring-port={webhooks}",
        "--enable-scheme=pytorchjob",
    ]
    log = folder / "training-operator.log"
    operator = Component("training-operator", command, log=log, ready=partial(answers, health, "/readyz"))
    operator.start()
    try:
        yield
    finally:
        operator.stop()
