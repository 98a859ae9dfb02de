"""A training loses a worker, goes on from its object store, and ends as if nothing had happened."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
import yaml
from msgspec import structs

from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import TRAINING_JOBS
from holdfast.local.up import LocalCluster
from tests.checkpoints.servers.server import Server
from tests.frameworks.jobs import ROOT, completed, logs
from tests.local.up.interrupted import TIMEOUT_S, Interrupting, Plan, all_batches, plans
from tests.local.up.trainings import (
    NAMESPACE,
    SMALL,
    checkpoint,
    in_store,
    make_bucket,
    saved_by,
    start,
    status,
    trainer,
    until_kept,
    write_secret,
)

EPOCHS, FREQUENCY = 300, 100
TRAINED = {"epochs": EPOCHS, "additionalParams": SMALL}


async def last_line(box: LocalCluster, name: str) -> JSON:
    return dict(json.loads((await logs(box, name))[0].splitlines()[-1]))


@pytest.fixture(scope="module")
async def undisturbed(box: LocalCluster) -> JSON:
    """How the training ends that nothing happens to."""
    await start(box, "undisturbed", numWorkers=2, hyperparameters=TRAINED)
    await completed(box, "undisturbed")
    return await last_line(box, "undisturbed")


async def loses_a_worker(box: LocalCluster, data: Path, server: Server, name: str) -> JSON:
    """How the training ends that loses worker 1 after its first checkpoint is in the store."""
    storage, secret = in_store(server, name)
    await write_secret(box, name, secret)
    kept = {"frequency": FREQUENCY, "storage": storage}
    await start(box, name, numWorkers=2, hyperparameters=TRAINED, checkpoint=kept)
    victim = await trainer(data, name, 1)
    await saved_by(await trainer(data, name))
    os.kill(victim, signal.SIGSTOP)
    address = server.address(f"team/{name}")
    await until_kept(address, server.environ)
    os.kill(victim, signal.SIGKILL)
    job = await completed(box, name)
    assert job.status
    assert job.status.restart_count == 1
    resumed_from = checkpoint(job.status).resumed_from or ""
    assert resumed_from.startswith(f"{address}/attempt-0/checkpoint-epoch-")
    said = (await logs(box, name))[0].splitlines()
    assert said[1].startswith("resumed from ")
    newest, *_ = await until_kept(address, server.environ)
    assert (newest.epoch, newest.attempt) == (EPOCHS, 1)
    return await last_line(box, name)


async def test_a_lost_worker_goes_on_from_s3(
    box: LocalCluster, data: Path, s3_server: Server, undisturbed: JSON
) -> None:
    assert await loses_a_worker(box, data, s3_server, "in-s3") == undisturbed


async def test_a_lost_worker_goes_on_from_google_cloud_storage(
    box: LocalCluster, data: Path, gcs_server: Server, undisturbed: JSON
) -> None:
    assert await loses_a_worker(box, data, gcs_server, "in-gcs") == undisturbed


async def test_a_lost_worker_goes_on_from_azure(
    box: LocalCluster, data: Path, azure_server: Server, undisturbed: JSON
) -> None:
    assert await loses_a_worker(box, data, azure_server, "in-azure") == undisturbed


@pytest.mark.timeout(TIMEOUT_S)  # a sidecar may wait for minutes for the part of a worker that was stopped
@pytest.mark.parametrize("place", ["s3", *(pytest.param(place, marks=pytest.mark.long) for place in ("gcs", "azure"))])
async def test_interrupted_within_epochs_it_trains_every_batch_once(
    place: str, box: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(f"{place}_server")
    interrupting = Interrupting(tmp_path)
    interrupting.begin(box)
    tried = [_named(plan, place) for plan in plans(7, 2, ("kill", "suspend"), restarts=2)]

    async def run(plan: Plan) -> None:
        storage, secret = in_store(server, plan.name)
        await write_secret(box, plan.name, secret)
        await interrupting.run(plan, storage=storage)

    await asyncio.gather(*map(run, tried))
    for plan in tried:
        assert interrupting.outcome(plan) == all_batches(), plan


def _named(plan: Plan, place: str) -> Plan:
    return structs.replace(plan, name=f"{plan.name}-{place}")


def example(name: str, server: Server) -> JSON:
    """As it is written, but for where the bucket is."""
    body = dict(yaml.safe_load((ROOT / "examples" / name).read_text()))
    storage = body["spec"]["checkpoint"]["storage"]
    storage |= {"endpoint": server.environ["AWS_ENDPOINT_URL"], "region": server.environ["AWS_REGION"]}
    return body


async def test_the_examples_train_into_a_bucket_and_go_on_from_it(box: LocalCluster, s3_server: Server) -> None:
    await make_bucket(s3_server, "ml-checkpoints")
    await write_secret(box, "aws-credentials", in_store(s3_server, "examples")[1])
    trained = {}
    for file in ("trainingjob-s3.yaml", "trainingjob-resume.yaml"):
        body = example(file, s3_server)
        await box.cluster.create(TRAINING_JOBS, body, namespace=NAMESPACE)
        await completed(box, body["metadata"]["name"])
        lines = (await logs(box, body["metadata"]["name"]))[0].splitlines()
        trained[file] = [line.split()[1] for line in lines if line.startswith("epoch ")]
    assert trained["trainingjob-s3.yaml"] == [f"{epoch}/10" for epoch in range(11)]
    assert trained["trainingjob-resume.yaml"] == [f"{epoch}/20" for epoch in range(11, 21)]
    seen = await status(box, "digits-resume")
    assert checkpoint(seen).resumed_from == "s3://ml-checkpoints/digits/first/attempt-0/checkpoint-epoch-10"
    assert (checkpoint(seen).last_epoch, seen.restart_count) == (20, 0)
