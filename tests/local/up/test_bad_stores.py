"""What is wrong with a store is said, and what can go on does."""

import asyncio
import os
import signal
from pathlib import Path

from holdfast.api.meta import Key
from holdfast.checkpoints.settings import open_bucket
from holdfast.cluster.resources import SECRETS, TRAINING_JOBS
from holdfast.local.up import LocalCluster
from tests.checkpoints.servers.server import Server, s3_environ, s3_signed
from tests.contract.waiting import gone
from tests.frameworks.jobs import completed
from tests.local.up.trainings import (
    FOREVER,
    NAMESPACE,
    SMALL,
    change,
    checkpoint,
    encoded,
    in_store,
    make_bucket,
    saved_by,
    start,
    status,
    stopped,
    told,
    trainer,
    until,
    until_kept,
    write_secret,
)
from tests.local.up.turning import Turning

SHORT = {"epochs": 2, "additionalParams": SMALL}


async def test_wrong_credentials_keep_a_job_waiting_and_its_message_says_so(box: LocalCluster, tmp_path: Path) -> None:
    """Others in the Secret are tried by themselves; here they are of somebody who may only read."""
    with s3_signed(tmp_path) as (stranger, reader):
        storage, secret = in_store(stranger, "stranger")
        await write_secret(box, "stranger", secret)
        await start(box, "stranger", hyperparameters=SHORT, checkpoint={"storage": storage})
        words = "the store does not accept the credentials; correct the Secret of secretRef"
        event = await told(box, "stranger", "Waiting", words)
        assert "s3://checkpoints/team/stranger (InvalidAccessKeyId)" in event.message
        assert secret["AWS_SECRET_ACCESS_KEY"] not in event.message
        waiting = await until(box, "stranger", lambda it: words in (it.message or ""), "says so")
        assert (waiting.state, waiting.restart_count) == ("Initializing", 0)
        data = {"data": encoded(in_store(reader, "stranger")[1])}
        await box.cluster.patch(SECRETS, Key(NAMESPACE, "stranger"), data)
        await told(box, "stranger", "Waiting", "the credentials do not allow writing there; allow put and delete")
        await box.cluster.delete(TRAINING_JOBS, Key(NAMESPACE, "stranger"))
        await gone(box.cluster, TRAINING_JOBS, Key(NAMESPACE, "stranger"))


async def test_a_missing_bucket_is_reported_and_waited_for(box: LocalCluster, s3_server: Server) -> None:
    storage, secret = in_store(s3_server, "early")
    await write_secret(box, "early", secret)
    await start(box, "early", hyperparameters=SHORT, checkpoint={"storage": {**storage, "s3Bucket": "not-yet"}})
    event = await told(box, "early", "Waiting", "there is no such bucket or container; create it")
    assert "s3://not-yet" in event.message
    await make_bucket(s3_server, "not-yet")
    await completed(box, "early")
    assert checkpoint(await status(box, "early")).last_epoch == 2


async def test_a_bucket_that_turns_read_only_costs_checkpoints_and_not_the_training(
    box: LocalCluster, data: Path, s3_server: Server
) -> None:
    with Turning(s3_server.port).running() as turning:
        server = s3_server._replace(port=turning.port, environ=s3_environ(turning.port))
        storage, secret = in_store(server, "turning")
        await write_secret(box, "turning", secret)
        await start(
            box,
            "turning",
            hyperparameters={"epochs": 300, "additionalParams": SMALL},
            checkpoint={"frequency": 50, "storage": storage},
            podTemplate={"terminationGracePeriodSeconds": 6},
        )
        training = await trainer(data, "turning")
        await saved_by(training)
        os.kill(training, signal.SIGSTOP)
        await until_kept(server.address("team/turning"), server.environ)
        turning.turn_read_only()
        os.kill(training, signal.SIGCONT)
        event = await told(box, "turning", "CheckpointFailed", "allow put and delete below the prefix")
        assert f"{server.address('team/turning')}/attempt-0/checkpoint-epoch-" in event.message
        assert "the training goes on" in event.message
        ended = await completed(box, "turning")
        assert ended.status
        assert (ended.status.restart_count, ended.status.current_epoch) == (0, 300)


async def test_a_checkpoint_damaged_in_the_bucket_is_set_aside_and_the_one_before_used(
    box: LocalCluster, s3_server: Server
) -> None:
    storage, secret = in_store(s3_server, "damaged")
    await write_secret(box, "damaged", secret)
    await start(box, "damaged", hyperparameters=FOREVER, checkpoint={"frequency": 50, "storage": storage})
    address = s3_server.address("team/damaged")
    await until_kept(address, s3_server.environ, 2)
    await change(box, "damaged", suspend=True)
    await stopped(box, "damaged")
    newest, before, *_ = await until_kept(address, s3_server.environ, 2)
    bucket = open_bucket(address, s3_server.environ)
    await asyncio.to_thread(bucket.put, f"{newest.folder}/model.npz", b"not what was saved")

    await change(box, "damaged", suspend=False)
    event = await told(box, "damaged", "CheckpointQuarantined", "the one before it is used")
    assert f"{address}/{newest.folder}" in event.message
    resumed = await until(box, "damaged", lambda it: checkpoint(it).resumed_from, "goes on")
    assert checkpoint(resumed).resumed_from == f"{address}/{before.folder}"
    aside = await asyncio.to_thread(lambda: [found.key for found in bucket.objects("quarantine")])
    assert any(key.endswith("/model.npz") for key in aside)
    await box.cluster.delete(TRAINING_JOBS, Key(NAMESPACE, "damaged"))
    await gone(box.cluster, TRAINING_JOBS, Key(NAMESPACE, "damaged"))
