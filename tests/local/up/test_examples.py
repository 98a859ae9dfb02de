"""Every manifest of examples/ and of the specification on one machine: it runs, or says what the machine lacks."""

from collections.abc import AsyncIterator, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.api.manifests import documents
from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.cluster.resources import KNOWN, NAMESPACES, KnownKind
from holdfast.local.up import LocalCluster, local_cluster
from tests.control_plane.waiting import eventually
from tests.local.up.conftest import ROOMY

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
SPECIFICATION = ROOT / "tests/fixtures/manifests"
DONE = "every worker succeeded"
GPUS = "no node has any: add a node with GPUs"
SECRET = "there are no credentials; create the Secret of secretRef, or name one that is there"
# Machines are pretended, and their GPUs, but the program of the job's image is not there.
PROGRAM = "can't open file"


def framework(name: str) -> str:
    return DONE if find_spec(name) else f"No module named '{name}'"


# What status.message comes to say, of the last object in the file.
SAID = {
    "examples/trainingjob.yaml": DONE,
    "examples/trainingjob-checkpoints.yaml": DONE,
    "examples/train/numpy_digits.yaml": DONE,
    "examples/train/torch_ddp.yaml": framework("torch"),
    "examples/train/jax_data_parallel.yaml": framework("jax"),
    "examples/train/keras_multiworker.yaml": framework("keras"),
    "examples/trainingjob-s3.yaml": SECRET,
    "examples/trainingjob-resume.yaml": SECRET,
    "examples/trainingjob-torchrun.yaml": GPUS,
    "examples/trainingjob-elastic.yaml": GPUS,
    "examples/trainingjob-advanced.yaml": GPUS,
    "examples/trainingjob-kueue.yaml": "waiting in its queue: Kueue lets the job start when its quota allows",
    "examples/trainingjob-from-image.yaml": "the checkpoint to resume from is being brought back",
    "examples/checkpointbackup.yaml": "runs follow spec.schedule",
    "examples/checkpointbackup-once.yaml": "there is no pod numbers-0",
    "examples/checkpointbackup-application.yaml": "there is no pod digits-training-0-x7k2p",
    "examples/gpuworkload.yaml": GPUS,
    "examples/gpuworkload-random.yaml": GPUS,
    "examples/gpuworkload-cost-optimized.yaml": GPUS,
    "examples/gpuworkload-advanced.yaml": "no node matches nodeSelector nvidia.com/gpu.product=A100-SXM4-80GB",
    "tests/fixtures/manifests/trainingjob-basic.yaml": GPUS,
    "tests/fixtures/manifests/trainingjob-distributed.yaml": GPUS,
    "tests/fixtures/manifests/trainingjob-resume.yaml": GPUS,
    "tests/fixtures/manifests/trainingjob-with-status.yaml": GPUS,
    "tests/fixtures/manifests/trainingjob-advanced.yaml": "PriorityClass high-priority does not exist: create it",
}
# Their machines are nodes with GPUs, which the others must not find: a cluster of their own.
SAID_OF_MACHINES = {
    "examples/spotinstancevm.yaml": "machines made from it that are there: ",
    "examples/spotinstancejob.yaml": PROGRAM,
    "examples/spotinstancejob-local.yaml": "2 of 2 replicas run",
    "examples/provisionedinstance.yaml": "is ready with 1 GPU",
    "tests/fixtures/manifests/spotinstancevm.yaml": "machines made from it that are there: ",
    "tests/fixtures/manifests/spotinstancejob.yaml": PROGRAM,
}
ALL = {**SAID, **SAID_OF_MACHINES}
# Instead of it where the time of a schedule comes just now.
SAID_WHEN_DUE = {"examples/checkpointbackup.yaml": "there is no pod notebook-0"}


class Applied(NamedTuple):
    cluster: Cluster
    objects: dict[str, tuple[KnownKind, Key]]


def kind_of(document: JSON) -> KnownKind:
    return next(known for known in KNOWN if known.resource.kind == document["kind"])


def test_every_manifest_is_in_a_table() -> None:
    # Templates of Secrets are for people to fill in.
    files = [*EXAMPLES.glob("*.yaml"), *(EXAMPLES / "train").glob("*.yaml"), *SPECIFICATION.glob("*.yaml")]
    assert {file.relative_to(ROOT).as_posix() for file in files} == set(ALL)


async def apply(cluster: Cluster, files: Iterable[str]) -> Applied:
    """All of them at once, each folder in a namespace of its own: names are used twice."""
    found = dict[str, tuple[KnownKind, Key]]()
    scripts = {file.name: file.read_text() for file in (EXAMPLES / "train").iterdir() if file.is_file()}
    config_maps = next(known.resource for known in KNOWN if known.singular == "configmap")
    await cluster.create(config_maps, {"metadata": {"name": "train-examples"}, "data": scripts}, namespace="default")
    for file in files:
        for document in documents((ROOT / file).read_text()):
            folder = "-spec" if file.startswith("tests/") else ""
            namespace = document["metadata"].pop("namespace", "default") + folder
            if namespace not in ("default", *(key.namespace for _, key in found.values())):
                await cluster.create(NAMESPACES, {"metadata": {"name": namespace}})
            known = kind_of(document)
            document.pop("status", None)
            made = await cluster.create(known.resource, document, namespace=namespace)
            found[file] = known, made.metadata.key
    return Applied(cluster, found)


@pytest.fixture(scope="module")
async def applied(box: LocalCluster) -> Applied:
    return await apply(box.cluster, SAID)


@pytest.fixture(scope="module")
async def applied_with_machines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Applied]:
    async with local_cluster(tmp_path_factory.mktemp("machines"), ROOMY, limits=False) as box:
        yield await apply(box.cluster, SAID_OF_MACHINES)


async def comes_to_say(applied: Applied, file: str) -> None:
    known, key = applied.objects[file]

    async def message() -> str:
        found = await applied.cluster.get(known.resource, key)
        status = found.document.get("status", {})
        # A backup that waits for its time says so in its conditions alone, as the template of machines does.
        return str(status.get("message") or [each["message"] for each in status.get("conditions", ())])

    expected = (ALL[file], SAID_WHEN_DUE.get(file, ALL[file]))
    await eventually(
        message, lambda said: any(each in said for each in expected), what=f"{file}: {ALL[file]}", within_s=240.0
    )


@pytest.mark.parametrize("file", SAID)
async def test_a_manifest_runs_or_says_in_one_sentence_what_is_missing(applied: Applied, file: str) -> None:
    await comes_to_say(applied, file)


@pytest.mark.parametrize("file", SAID_OF_MACHINES)
async def test_a_manifest_of_machines_does_so_too(applied_with_machines: Applied, file: str) -> None:
    await comes_to_say(applied_with_machines, file)
