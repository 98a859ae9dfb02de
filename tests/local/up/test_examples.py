"""Every manifest of examples/ and of the specification on one machine: it runs, or says what the machine lacks."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.api.manifests import documents
from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import KNOWN, NAMESPACES, KnownKind
from holdfast.local.up import LocalCluster
from tests.control_plane.waiting import eventually

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
    "examples/spotinstancevm.yaml": "machines made from it that are there: ",
    "examples/spotinstancejob.yaml": PROGRAM,
    "examples/spotinstancejob-local.yaml": "2 of 2 replicas run",
    "examples/provisionedinstance.yaml": "is ready with 1 GPUs",
    "tests/fixtures/manifests/spotinstancevm.yaml": "machines made from it that are there: ",
    "tests/fixtures/manifests/spotinstancejob.yaml": PROGRAM,
    "tests/fixtures/manifests/trainingjob-basic.yaml": GPUS,
    "tests/fixtures/manifests/trainingjob-distributed.yaml": GPUS,
    "tests/fixtures/manifests/trainingjob-resume.yaml": GPUS,
    "tests/fixtures/manifests/trainingjob-with-status.yaml": GPUS,
    "tests/fixtures/manifests/trainingjob-advanced.yaml": "PriorityClass high-priority does not exist: create it",
}


def kind_of(document: JSON) -> KnownKind:
    return next(known for known in KNOWN if known.resource.kind == document["kind"])


def test_every_manifest_is_in_the_table() -> None:
    # Templates of Secrets are for people to fill in.
    files = [*EXAMPLES.glob("*.yaml"), *(EXAMPLES / "train").glob("*.yaml"), *SPECIFICATION.glob("*.yaml")]
    assert {file.relative_to(ROOT).as_posix() for file in files} == set(SAID)


@pytest.fixture(scope="module")
async def applied(box: LocalCluster) -> dict[str, tuple[KnownKind, Key]]:
    """All of them at once, each folder in a namespace of its own: names are used twice."""
    cluster, found = box.cluster, dict[str, tuple[KnownKind, Key]]()
    scripts = {file.name: file.read_text() for file in (EXAMPLES / "train").iterdir() if file.is_file()}
    config_maps = next(known.resource for known in KNOWN if known.singular == "configmap")
    await cluster.create(config_maps, {"metadata": {"name": "train-examples"}, "data": scripts}, namespace="default")
    for file in SAID:
        for document in documents((ROOT / file).read_text()):
            namespace = document["metadata"].pop("namespace", "default") + (
                "-spec" if file.startswith("tests/") else ""
            )
            if namespace not in ("default", *(key.namespace for _, key in found.values())):
                await cluster.create(NAMESPACES, {"metadata": {"name": namespace}})
            known = kind_of(document)
            document.pop("status", None)
            made = await cluster.create(known.resource, document, namespace=namespace)
            found[file] = known, made.metadata.key
    return found


@pytest.mark.parametrize("file", SAID)
async def test_a_manifest_runs_or_says_in_one_sentence_what_is_missing(
    box: LocalCluster, applied: dict[str, tuple[KnownKind, Key]], file: str
) -> None:
    known, key = applied[file]

    async def message() -> str:
        found = await box.cluster.get(known.resource, key)
        status = found.document.get("status", {})
        # A backup that waits for its time says so in its conditions alone, as the template of machines does.
        return str(status.get("message") or [each["message"] for each in status.get("conditions", ())])

    await eventually(message, lambda said: SAID[file] in said, what=f"{file}: {SAID[file]}", within_s=240.0)
