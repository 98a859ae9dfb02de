"""The four examples of the README run on a cluster of this machine alone, whose GPUs, CPUs and memory are pretended.

Changed is what can't be had here: data that is not on this machine (basic: digits instead of mnist), images (the
others: the command is TELL), and Amazon (the buckets are on a server here). The eight machines of the advanced example
are eight folders of this one.
"""

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientSession

from holdfast.api.meta import Key
from holdfast.checkpoints.manifest import CheckpointName
from holdfast.checkpoints.settings import open_bucket, open_store
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import NAMESPACES, NODES, PRIORITY_CLASSES, SECRETS, TRAINING_JOBS
from holdfast.local.host import Hardware
from holdfast.local.kubelet.kubelet import Kubelet
from holdfast.local.up import LocalCluster, local_cluster
from holdfast.pods.checkpoints import AWS_KEYS, AWS_SECRET
from holdfast.runtime.process import utc_now
from tests.checkpoints.servers.server import Server, s3
from tests.frameworks.jobs import NAMESPACE, ROOT, completed, logs

MANIFESTS = ROOT / "tests" / "fixtures" / "manifests"
LARGE = Hardware(cpus=64, memory_mib=256 * 1024, gpus=8)
# A worker that leaves its environment, and what it finds in the place of its folders, where the test looks for it.
TELL = """
import json, os, pathlib
told = dict(os.environ)
resumed = pathlib.Path(os.environ.get("RESUME_FROM", "/nowhere"), "model.bin")
if resumed.exists():
    told["resumed"] = resumed.read_text()
    saving = pathlib.Path(os.environ["CHECKPOINT_DIR"], "saving")
    saving.mkdir()
    (saving / f"rank-{os.environ['RANK']}.bin").write_text("better " + told["resumed"])
    (saving / ".holdfast-complete").write_text('{"shards": 1, "ranks": [0]}')
    saving.rename(saving.with_name("checkpoint-epoch-99"))
for name in ("CHECKPOINT_DIR", "RESUME_FROM", "CONFIG_FILE"):
    told["is there: " + name] = os.path.exists(os.environ.get(name, "/nowhere"))
place = pathlib.Path(os.environ["TELL"], os.environ["HOLDFAST_INDEX"])
place.write_text(json.dumps(told))
"""
Told = list[dict[str, Any]]


@pytest.fixture(scope="module")
async def large_box(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    async with local_cluster(tmp_path_factory.mktemp("large"), LARGE, limits=False) as box:
        yield box


@pytest.fixture(scope="module")
async def amazon(large_box: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """A server with the examples' two buckets, and the Secret with its keys."""
    with s3(tmp_path_factory.mktemp("amazon")) as server:
        async with ClientSession() as session, session.put(f"http://127.0.0.1:{server.port}/ml-checkpoints") as made:
            assert made.status == 200
        keys = {key: b64encode(server.environ[key].encode()).decode() for key in AWS_KEYS if key in server.environ}
        await large_box.cluster.create(SECRETS, {"metadata": {"name": AWS_SECRET}, "data": keys}, namespace=NAMESPACE)
        yield server


def in_reach(body: JSON, server: Server) -> JSON:
    """The example, with its buckets on that server, and in the one that it resumes from what it resumes from."""
    checkpoint = body["spec"]["checkpoint"]
    bucket = open_bucket(checkpoint["resumeFrom"], server.environ)
    bucket.put("model.bin", b"weights")
    storage = {**checkpoint["storage"], "endpoint": f"http://127.0.0.1:{server.port}", "region": "us-east-1"}
    return {**body, "spec": {**body["spec"], "checkpoint": {**checkpoint, "storage": storage}}}


async def kept(box: LocalCluster, server: Server, name: str) -> list[tuple[CheckpointName, list[str]]]:
    """The job's own checkpoints in the bucket, each with its files."""
    job = await box.cluster.get(TRAINING_JOBS, Key(NAMESPACE, name))
    store = open_store(f"s3://ml-checkpoints/{NAMESPACE}/{name}/{job.metadata.uid}", server.environ)
    manifests = [(each, store.manifest(each)) for each in store.names(0)]
    return [(each, [file.path for file in manifest.files]) for each, manifest in manifests if manifest]


@pytest.fixture
async def eight_machines(large_box: LocalCluster, tmp_path: Path) -> AsyncIterator[None]:
    """Beside the one that is there, as the advanced example asks for them."""
    labels = {"nvidia.com/gpu.product": "A100-SXM4-80GB", "node-type": "gpu-large"}
    resources = Hardware(cpus=64, memory_mib=256 * 1024, gpus=4).resources
    async with AsyncExitStack() as machines:
        for number in range(8):
            name, data = f"a100-{number}", tmp_path / f"a100-{number}"
            machine = Kubelet(large_box.cluster, name=name, data=data, resources=resources, now=utc_now)
            await machines.enter_async_context(machine.running())
            await large_box.cluster.patch(NODES, Key("", name), {"metadata": {"labels": labels}})
        yield


def example(name: str) -> JSON:
    return dict(yaml.safe_load((MANIFESTS / f"trainingjob-{name}.yaml").read_text()))


async def told_by(box: LocalCluster, body: JSON, folder: Path) -> Told:
    """Run the job with TELL for its command; the environment of each worker, in order."""
    spec = {key: value for key, value in body["spec"].items() if key != "args"}
    variables = [*spec.get("env", []), {"name": "TELL", "value": str(folder)}]
    changed = {**body, "spec": {**spec, "command": ["python", "-c", TELL], "env": variables}}
    job = await box.cluster.create(TRAINING_JOBS, changed, namespace=NAMESPACE)
    ended = await completed(box, job.metadata.name)
    assert ended.status is not None
    assert ended.status.restart_count == 0
    return [json.loads((folder / str(index)).read_text()) for index in range(job.spec.num_workers)]


def values(told: Told, name: str) -> list[Any]:
    return [environment.get(name) for environment in told]


def devices(told: Told) -> list[int]:
    """How many GPUs each worker sees."""
    return [len(visible.split(",")) for visible in values(told, "CUDA_VISIBLE_DEVICES")]


async def test_the_basic_example_trains_on_the_digits(large_box: LocalCluster) -> None:
    body = example("basic")
    body["spec"]["dataset"] = "digits"
    await large_box.cluster.create(NAMESPACES, {"metadata": {"name": "ml-training"}})
    await large_box.cluster.create(TRAINING_JOBS, body, namespace="ml-training")
    await completed(large_box, "mnist-training", "ml-training")
    first, _ = await logs(large_box, "mnist-training", "ml-training")
    assert first.startswith("training cnn (")
    assert "on digits (1437 samples, 360 held out) with adam and 2 workers" in first
    summary = json.loads(first.splitlines()[-1])
    assert summary["epochs"] == 10
    assert summary["accuracy"] >= 0.9


async def test_the_distributed_example_gives_every_worker_its_place_and_its_gpus(
    large_box: LocalCluster, tmp_path: Path
) -> None:
    told = await told_by(large_box, example("distributed"), tmp_path)
    assert values(told, "RANK") == ["0", "1"]
    assert values(told, "WORLD_SIZE") == ["2", "2"]
    assert values(told, "HOLDFAST_BACKEND") == ["nccl", "nccl"]
    assert values(told, "MODEL") == ["bert-base"] * 2
    assert values(told, "DATASET") == ["wiki text"] * 2
    assert len({environment["MASTER_ADDR"] for environment in told}) == 1
    assert devices(told) == [2, 2]
    assert len(set(",".join(values(told, "CUDA_VISIBLE_DEVICES")).split(","))) == 4, "no GPU is given twice"
    assert values(told, "is there: CONFIG_FILE") == [True, True]


async def test_the_example_that_resumes_goes_on_from_another_bucket_and_saves_to_its_own(
    large_box: LocalCluster, amazon: Server, tmp_path: Path
) -> None:
    told = await told_by(large_box, in_reach(example("resume"), amazon), tmp_path)
    assert len(told) == 4
    assert devices(told) == [2] * 4
    assert values(told, "CHECKPOINT_FREQUENCY") == ["2"] * 4
    assert values(told, "is there: CHECKPOINT_DIR") == [True] * 4
    assert values(told, "resumed") == ["weights"] * 4
    assert not [name for environment in told for name in environment if name.startswith("AWS_")]
    saved = await kept(large_box, amazon, "gpt-resume")
    assert [name.epoch for name, _ in saved] == [99]
    assert "rank-0.bin" in saved[0][1]


@pytest.mark.usefixtures("eight_machines")
async def test_the_advanced_example_runs_on_eight_machines_with_all_that_it_sets(
    large_box: LocalCluster, amazon: Server, tmp_path: Path
) -> None:
    await large_box.cluster.create(PRIORITY_CLASSES, {"metadata": {"name": "high-priority"}, "value": 1000})
    told = await told_by(large_box, in_reach(example("advanced"), amazon), tmp_path)
    assert values(told, "resumed") == ["weights"] * 8
    assert values(told, "RANK") == [str(rank) for rank in range(8)]
    assert devices(told) == [4] * 8
    expected = {
        "NCCL_DEBUG": "INFO",
        "NCCL_IB_DISABLE": "1",
        "LEARNING_RATE": "0.0001",
        "BATCH_SIZE": "128",
        "EPOCHS": "100",
        "OPTIMIZER": "adamw",
        "WARMUP_STEPS": "1000",
        "GRADIENT_ACCUMULATION_STEPS": "4",
        "MIXED_PRECISION": "true",
        "PARAM_WEIGHT_DECAY": "0.01",
        "PARAM_LABEL_SMOOTHING": "0.1",
        "CHECKPOINT_FREQUENCY": "5",
        "MLFLOW_TRACKING_URI": "http://mlflow.ml-infra.svc.cluster.local:5000",
        "WANDB_PROJECT": "advanced-training",
    }
    for environment in told:
        assert expected == {name: environment.get(name) for name in expected}
    assert len({environment["HOLDFAST_MACHINE"] for environment in told}) == 8, "each on a machine of its own"
