"""`holdfast checkpoints` as people run it, on both engines."""

import asyncio
import json
from pathlib import Path

import yaml

from holdfast.checkpoints.manifest import MANIFEST, checkpoint_name
from tests.checkpoints.making import MODEL, content
from tests.checkpoints.servers.refusing import Refusing
from tests.checkpoints.servers.server import BUCKET, Server, s3_environ
from tests.cli.checkpoints.jobs import (
    COMPLETED,
    KEYS,
    RUNNING,
    below,
    claim_job,
    fill_bucket,
    fill_volume,
    s3_job,
    secret,
    volume_of,
)
from tests.cli.lab import WITHIN_S, CommandLab, holdfast, interrupted

METRICS = ("LOSS", "ACCURACY", "BEST")
FIVE = [checkpoint_name(epoch, 0) for epoch in range(1, 6)]


async def test_a_jobs_checkpoints_in_s3_are_listed_verified_pruned_and_downloaded(
    lab: CommandLab, s3_server: Server, tmp_path: Path
) -> None:
    await s3_job(lab, s3_server, "digits")
    await secret(lab, "aws-credentials", **KEYS)
    prefix = f"{lab.namespace}/digits"
    fill_bucket(s3_server, tmp_path / "saved", prefix, *FIVE)

    header, newest, *others = (await lab.good("checkpoints", "list", "digits")).splitlines()
    assert header.split() == ["EPOCH", "STEP", "ATTEMPT", "SIZE", "FILES", "SAVED", "VALID", "RESUME", *METRICS]
    assert newest.split()[:6] == ["5", "-", "0", "9", "B", "3"]
    assert newest.endswith("yes     next     -      -")
    assert [line.split()[0] for line in others] == ["4", "3", "2", "1"]

    assert "epoch 5 of attempt 0: ok, 9 B in 3 files\n" in await lab.good("checkpoints", "verify", "tj/digits")

    would = await lab.good("checkpoints", "prune", "digits", "--keep", "2")
    assert would.splitlines()[-1] == "Nothing was deleted yet: 3 would go, 27 B in all. Say --yes to delete."
    gone = await lab.good("checkpoints", "prune", "digits", "--keep", "2", "--yes")
    deleted = [f"epoch {epoch} of attempt 0: deleted, 9 B" for epoch in (1, 2, 3)]
    assert gone.splitlines() == [*deleted, "3 deleted, 27 B in all."]

    target = tmp_path / "here" / "digits"
    said = await lab.good("checkpoints", "download", "digits", "--output", str(target))
    assert said == f"checkpoint-epoch-5 of attempt 0: 9 B in 3 files, each as it was saved: {target}\n"
    assert content(target) == MODEL
    assert below(target.parent) == ["digits"]


async def test_a_claim_of_one_machine_is_a_folder_here(embedded: CommandLab, tmp_path: Path) -> None:
    await claim_job(embedded, "digits", RUNNING)
    folder = await volume_of(embedded, "digits")
    fill_volume(folder, *FIVE)
    rows = (await embedded.good("checkpoints", "list", "digits", "--no-headers")).splitlines()
    assert [row.split()[0] for row in rows] == ["5", "4", "3", "2", "1"]
    target = tmp_path / "copy"
    await embedded.good("checkpoints", "download", "digits", "--epoch", "2", "-o", str(target))
    assert content(target) == MODEL
    assert json.loads((target / MANIFEST).read_bytes())["epoch"] == 2
    gone = await embedded.good("checkpoints", "prune", "digits", "--keep", "3", "-y")
    assert [line.split(":")[0] for line in gone.splitlines()[:-1]] == ["epoch 1 of attempt 0", "epoch 2 of attempt 0"]
    assert sorted(path.name for path in (folder / "attempt-0").iterdir()) == [
        f"checkpoint-epoch-{epoch}" for epoch in (3, 4, 5)
    ]


async def test_damage_is_listed_by_file_and_ends_with_1(embedded: CommandLab, tmp_path: Path) -> None:
    await claim_job(embedded, "digits")
    folder = await volume_of(embedded, "digits")
    fill_volume(folder, *FIVE[:2])
    (folder / "attempt-0/checkpoint-epoch-2/model.bin").write_bytes(b"WEIGHTS")
    done = await embedded.holdfast("checkpoints", "verify", "digits")
    assert done.code == 1
    assert done.lines == [
        "epoch 2 of attempt 0: damaged",
        "  the content of model.bin is not what was saved: its digest differs",
        "epoch 1 of attempt 0: ok, 9 B in 3 files",
    ]
    assert await embedded.good("checkpoints", "verify", "digits", "--epoch", "1") == f"{done.lines[2]}\n"

    target = tmp_path / "copy"
    words = await embedded.refused("checkpoints", "download", "digits", "-o", str(target))
    assert "nothing was downloaded, checkpoint-epoch-2 of attempt 0 is damaged: the content of model.bin" in words
    assert not [name for name in below(tmp_path) if "copy" in name], "nothing that looks like a checkpoint is left"
    assert "is damaged" in await embedded.refused("checkpoints", "prune", "digits", "--keep", "1", "--yes")


async def test_programs_get_everything_as_json_or_yaml_and_people_more_with_wide(embedded: CommandLab) -> None:
    await claim_job(embedded, "digits", RUNNING)
    folder = await volume_of(embedded, "digits")
    fill_volume(folder, checkpoint_name(1, 0))
    (folder / "attempt-0/checkpoint-epoch-2").mkdir()
    as_json = json.loads(await embedded.good("checkpoints", "list", "digits", "-o", "json"))
    assert as_json == yaml.safe_load(await embedded.good("checkpoints", "list", "digits", "-o", "yaml"))
    assert (as_json["job"], as_json["storage"]) == ("digits", str(folder))
    unfinished, valid = as_json["checkpoints"]
    assert valid == {
        "epoch": 1,
        "attempt": 0,
        "path": "attempt-0/checkpoint-epoch-1",
        "state": "valid",
        "bytes": 9,
        "files": 3,
        "workers": 1,
        "savedAt": "2026-01-02T03:04:05Z",
        "resumes": True,
    }
    assert (unfinished["state"], "bytes" in unfinished, unfinished.get("resumes")) == ("unfinished", False, None)
    header, *rows = (await embedded.good("checkpoints", "list", "digits", "-o", "wide")).splitlines()
    assert header.split()[-4:] == ["WORKERS", "TIME", "PATH", "REASON"]
    assert "no, unfinished" in rows[0]
    assert "it has no manifest" in rows[0]


async def test_the_best_is_downloaded_by_the_metric_that_the_job_is_judged_by(
    embedded: CommandLab, tmp_path: Path
) -> None:
    await claim_job(embedded, "digits")
    await claim_job(embedded, "target", successPolicy={"targetAccuracy": 0.9})
    for name, best in (("digits", 2), ("target", 1)):
        folder = await volume_of(embedded, name)
        for epoch, number in ((1, 0.8), (2, 0.1), (3, 0.5)):
            marker = json.dumps({"metrics": {"loss": number, "accuracy": number}}).encode()
            fill_volume(folder, checkpoint_name(epoch, 0), files={**MODEL, ".holdfast-complete": marker})
        listing = json.loads(await embedded.good("checkpoints", "list", name, "-o", "json"))["checkpoints"]
        assert [saved["epoch"] for saved in listing if saved.get("best")] == [best]
        assert [saved["metrics"]["loss"] for saved in listing] == [0.5, 0.1, 0.8]
        said = await embedded.good("checkpoints", "download", name, "--best", "-o", str(tmp_path / name))
        assert said.startswith(f"checkpoint-epoch-{best} of attempt 0")
        assert content(tmp_path / name) == MODEL
    words = await embedded.refused("checkpoints", "download", "digits", "--best", "--epoch", "1", code=2)
    assert "--best and --epoch name different checkpoints" in words


async def test_a_running_job_is_not_pruned_below_its_own_retention(embedded: CommandLab) -> None:
    await claim_job(embedded, "digits", RUNNING, retention=4)
    fill_volume(await volume_of(embedded, "digits"), *FIVE)
    words = await embedded.refused("checkpoints", "prune", "digits", "--keep", "3", "--yes", code=2)
    assert "digits is Running and keeps 4 itself: use --keep 4 or more" in words
    await embedded.say("digits", COMPLETED)
    assert len((await embedded.good("checkpoints", "prune", "digits", "--keep", "3", "--yes")).splitlines()) == 3
    assert "no more than 3 in" in await embedded.good("checkpoints", "prune", "digits", "--keep", "3", "--yes")


async def test_a_download_overwrites_nothing(embedded: CommandLab, tmp_path: Path) -> None:
    await claim_job(embedded, "digits")
    fill_volume(await volume_of(embedded, "digits"), checkpoint_name(1, 0))
    mine = tmp_path / "mine"
    mine.mkdir()
    words = await embedded.refused("checkpoints", "download", "digits", "-o", str(mine), code=2)
    assert f"{mine} is there already, and nothing is overwritten" in words
    assert list(mine.iterdir()) == []
    dangling = tmp_path / "link"
    dangling.symlink_to(tmp_path / "nowhere")
    await embedded.refused("checkpoints", "download", "digits", "-o", str(dangling), code=2)


async def test_a_checkpoint_that_cannot_be_had_gets_a_plain_sentence(embedded: CommandLab) -> None:
    await embedded.job("plain", COMPLETED)
    await embedded.job("off", COMPLETED, checkpoint={"enabled": False})
    await embedded.job("early", checkpoint={})
    await claim_job(embedded, "empty")
    expected = {
        ("list", "absent"): 'trainingjobs.ml.example.com "absent" not found',
        ("list", "plain"): "keeps no checkpoints: its spec has no checkpoint block that is enabled",
        ("verify", "off"): "keeps no checkpoints",
        ("list", "early"): "the job has not begun yet, or the claim was deleted",
        ("download", "empty"): "there is no valid checkpoint in",
        ("verify", "empty", "--epoch", "3"): "no valid checkpoint of epoch 3",
    }
    for arguments, words in expected.items():
        assert words in await embedded.refused("checkpoints", *arguments)
    assert "only TrainingJobs have checkpoints" in await embedded.refused("checkpoints", "list", "pod/a", code=2)
    done = await embedded.holdfast("checkpoints", "list", "empty")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("empty has no checkpoint yet in ")


async def test_a_missing_bucket_is_named_as_missing(embedded: CommandLab, s3_server: Server) -> None:
    await s3_job(embedded, s3_server, "nowhere", s3Bucket="not-there")
    await secret(embedded, "aws-credentials", **KEYS)
    words = await embedded.refused("checkpoints", "list", "nowhere")
    assert "there is no such bucket or container; create it, or correct checkpoint.storage" in words
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in words


async def test_a_store_may_be_reached_in_another_way_than_from_the_pods(
    embedded: CommandLab, s3_server: Server
) -> None:
    await s3_job(embedded, s3_server, "far", endpoint="http://minio.invalid:9000")
    await secret(embedded, "aws-credentials", **KEYS)
    done = await embedded.holdfast("checkpoints", "list", "far", "--endpoint", s3_server.environ["AWS_ENDPOINT_URL"])
    assert (done.code, done.err) == (0, f"far has no checkpoint yet in s3://{BUCKET}/trial/far.\n")
    await embedded.job("google", checkpoint={"storage": {"type": "gcs", "gcsBucket": BUCKET}})
    words = await embedded.refused("checkpoints", "list", "google", "--endpoint", "http://127.0.0.1:1", code=2)
    assert "--endpoint goes with s3 and azure" in words


async def test_credentials_that_are_refused_are_named_by_where_they_came_from(embedded: CommandLab) -> None:
    with Refusing(403, "InvalidAccessKeyId").running() as server:
        refusing = Server("s3", server.port, s3_environ(server.port))
        await s3_job(embedded, refusing, "digits", secretRef={"name": "login"})
        environ = {"KUBECONFIG": str(embedded.kubeconfig), **KEYS}
        done = await holdfast("checkpoints", "list", "digits", "-n", embedded.namespace, **environ)
        assert done.code == 1
        assert "environment were used, since Secret login is not there" in done.err
        await secret(embedded, "login", **KEYS)
        words = await embedded.refused("checkpoints", "list", "digits")
        assert "the store does not accept the credentials" in words
        assert "(the credentials of Secret login were used)" in words
        assert not any(value in done.err + words for value in KEYS.values())


async def test_ctrl_c_ends_a_command_that_waits_for_a_store_for_ever(embedded: CommandLab) -> None:
    asked = asyncio.Event()

    async def never_answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await silence.wait()
        writer.close()

    silence = asyncio.Event()
    async with await asyncio.start_server(never_answer, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        await s3_job(embedded, Server("s3", port, s3_environ(port)), "digits")
        await secret(embedded, "aws-credentials", **KEYS)
        process = await embedded.start("checkpoints", "download", "digits")
        async with asyncio.timeout(WITHIN_S):
            await asked.wait()
        done = await interrupted(process)
        silence.set()
    assert (done.code, done.out, done.err) == (130, "", "")
