"""logs of workers that are gone, on both engines."""

from asyncio.subprocess import Process
from collections.abc import AsyncIterator

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON, DeleteOptions
from holdfast.cluster.resources import CONFIG_MAPS, NODES, PODS, TRAINING_JOBS
from holdfast.trainingjob.objects.environment import worker_log_config_map
from holdfast.trainingjob.objects.names import ATTEMPT_LABEL, INDEX_LABEL, JOB_LABEL
from tests.cli.lab import CommandLab, finished, line_of

LIVE = "line 1\nline 2\nline 3\n"
FACTS = {
    "container": "trainer",
    "node": "gpu-3",
    "exitCode": "3",
    "reason": "Error",
    "finishedAt": "2026-01-01T00:01:00Z",
}


async def keep(lab: CommandLab, text: str, *, attempt: int = 0, worker: int = 0, facts: dict[str, str] = FACTS) -> None:
    """As the operator does when the attempt breaks."""
    job = await lab.cluster.patch_status(
        TRAINING_JOBS, Key(lab.namespace, "bert"), {"status": {"restartCount": attempt}}
    )
    body = worker_log_config_map(job, worker, text.encode(), facts)
    await lab.cluster.create(CONFIG_MAPS, body, namespace=lab.namespace)


async def live(lab: CommandLab, *, attempt: int, worker: int = 0, name: str = "") -> str:
    """A worker that runs; the name of its pod."""
    name = name or f"bert-{attempt}-{worker}"
    await lab.pod(name, {JOB_LABEL: "bert", ATTEMPT_LABEL: str(attempt), INDEX_LABEL: str(worker)})
    return name


async def bert(lab: CommandLab, **status: object) -> None:
    await lab.job("bert", {"restartCount": 0, **status}, numWorkers=2)


async def test_what_an_attempt_wrote_before_it_was_suspended_is_shown_first(embedded: CommandLab) -> None:
    await bert(embedded, state="Suspended")
    job = await embedded.cluster.get(TRAINING_JOBS, Key(embedded.namespace, "bert"))
    before = worker_log_config_map(job, 0, b"before\n", {"pod": "a"})["data"]
    body = worker_log_config_map(job, 0, b"after\n", {"pod": "b"}, stored=before)
    await embedded.cluster.create(CONFIG_MAPS, body, namespace=embedded.namespace)
    assert await embedded.good("logs", "bert") == "before\nafter\n"
    name = await live(embedded, attempt=0)
    assert await embedded.good("logs", "bert", "--attempt=0") == f"before\nafter\n{LIVE}"
    stored = Key(embedded.namespace, body["metadata"]["name"])
    await embedded.cluster.patch(CONFIG_MAPS, stored, {"data": {"pod": name}})
    assert await embedded.good("logs", "bert", "--attempt=0") == f"before\n{LIVE}"
    assert await embedded.good("logs", "bert") == LIVE


async def test_the_log_of_a_worker_outlives_its_pod(lab: CommandLab) -> None:
    await bert(lab)
    await keep(lab, "first\nloss is nan\n", worker=1)
    await lab.say("bert", {"restartCount": 1, "state": "Running"})
    await live(lab, attempt=1)
    done = await lab.holdfast("logs", "bert", "--attempt", "0", "--worker", "1")
    assert (done.code, done.out) == (0, "first\nloss is nan\n")
    how = "worker 1 of attempt 0 exited with code 3 on gpu-3 at 2026-01-01T00:01:00Z"
    assert done.err == f"holdfast: {how}: the end of its log, as it was kept\n"
    assert await lab.good("logs", "bert") == LIVE
    assert await lab.good("logs", "tj/bert", "--attempt=1") == LIVE


async def test_the_error_for_a_log_that_is_not_stored_lists_those_that_are(lab: CommandLab) -> None:
    await bert(lab)
    await keep(lab, "a\n", attempt=0, worker=1)
    await keep(lab, "b\n", attempt=2, worker=3)
    await keep(lab, "c\n", attempt=2, worker=0)
    await lab.say("bert", {"restartCount": 3, "state": "Restarting", "message": "next try in a minute"})
    kept = "logs are kept of attempt 0 (worker 1), attempt 2 (workers 0, 3)"
    said = await lab.refused("logs", "bert", "--attempt", "0")
    assert "bert has no log of worker 0 in attempt 0, whose pods are gone" in said
    assert kept in said
    said = await lab.refused("logs", "bert")
    assert "no log of worker 0 in attempt 3: it is Restarting: next try in a minute" in said
    assert kept in said
    assert kept in await lab.refused("logs", "bert", "--attempt=1", "--all")
    assert kept in await lab.refused("logs", "-f", "bert", "--attempt=1")
    assert "is in attempt 3: there is no attempt 4 yet" in await lab.refused("logs", "bert", "--attempt=4")


async def test_a_pod_that_is_there_says_more_than_what_is_kept_of_it(embedded: CommandLab) -> None:
    await bert(embedded)
    await keep(embedded, "kept\n")
    await embedded.say("bert", {"state": "Failed"})
    await live(embedded, attempt=0)
    assert await embedded.good("logs", "bert") == LIVE


async def test_all_workers_of_an_attempt_are_shown_whether_gone_or_not(embedded: CommandLab) -> None:
    await bert(embedded)
    await keep(embedded, "one\ntwo\n", worker=1)
    await live(embedded, attempt=0, worker=0)
    everyone = await embedded.good("logs", "bert", "--all", "--tail=1")
    assert everyone == "[0] line 3\n[1] two\n"


@pytest.mark.parametrize(
    ("tail", "text"), [("0", ""), ("1", "two\rthree"), ("2", "one\ntwo\rthree"), ("7", "one\ntwo\rthree")]
)
async def test_the_last_lines_of_a_kept_log(embedded: CommandLab, tail: str, text: str) -> None:
    await bert(embedded)
    await keep(embedded, "one\ntwo\rthree")
    done = await embedded.holdfast("logs", "bert", "--tail", tail)
    assert (done.code, done.out) == (0, text)


async def test_following_a_worker_that_is_gone_ends_at_once(embedded: CommandLab) -> None:
    await bert(embedded)
    await keep(embedded, "kept\n")
    await embedded.say("bert", {"state": "Failed"})
    done = await embedded.holdfast("logs", "-f", "bert")
    assert (done.code, done.out) == (1, "kept\n")
    await embedded.say("bert", {"restartCount": 1, "state": "Running"})
    assert await embedded.good("logs", "-f", "bert", "--attempt=0") == "kept\n"


async def follow(lab: CommandLab, *options: str, workers: int = 1) -> Process:
    """Attempt 0, whose workers have written their lines."""
    following = await lab.start("logs", "-f", "bert", *options)
    lines = [await line_of(following) for _ in range(3 * workers)]
    assert sorted(line[-len("line 1\n") :] for line in lines) == sorted(LIVE.splitlines(keepends=True) * workers)
    return following


async def test_a_stream_of_a_lost_node_is_left_when_the_next_attempt_runs(embedded: CommandLab) -> None:
    await bert(embedded, state="Running")
    for worker in (0, 1):
        await live(embedded, attempt=0, worker=worker)  # whose log never ends
    following = await follow(embedded, "--all", workers=2)
    lost = "worker 1 is lost with its node"
    await embedded.say("bert", {"restartCount": 1, "state": "Restarting", "failureReason": lost})
    for worker in (0, 1):
        await live(embedded, attempt=1, worker=worker, name=f"short-{worker}")
    await embedded.say("bert", {"state": "Completed"})
    done = await finished(following)
    assert done.code == 0, done
    assert sorted(done.lines) == [f"[{worker}] {line}" for worker in (0, 1) for line in LIVE.splitlines()]
    assert done.err == f"holdfast: attempt 0 has ended: {lost}\nholdfast: following attempt 1\n"


async def test_attempts_that_nobody_followed_are_shown_from_their_stored_logs(embedded: CommandLab) -> None:
    await bert(embedded, state="Running")
    await live(embedded, attempt=0, name="short-0")
    following = await follow(embedded)
    await keep(embedded, "of attempt 1\n", attempt=1)
    await keep(embedded, "of attempt 3\n", attempt=3)
    await embedded.say("bert", {"restartCount": 4, "state": "Restarting", "failureReason": "worker 0 broke"})
    await live(embedded, attempt=4, name="short-4")
    await embedded.say("bert", {"state": "Failed"})
    done = await finished(following)
    assert (done.code, done.out) == (1, f"of attempt 1\nof attempt 3\n{LIVE}")
    said = [line.removeprefix("holdfast: ") for line in done.err.splitlines()]
    assert [line for line in said if line.startswith("attempt ")] == [
        "attempt 0 has ended: a new one follows",
        "attempt 1 has ended: a new one follows",
        "attempt 2 has ended: a new one follows",
        "attempt 3 has ended: worker 0 broke",
    ]
    assert said[-1] == "following attempt 4"


async def test_the_log_of_a_last_attempt_that_nobody_followed_is_shown(embedded: CommandLab) -> None:
    await bert(embedded, state="Running")
    await live(embedded, attempt=0, name="short-0")
    following = await follow(embedded)
    await keep(embedded, "of attempt 1\n", attempt=1)
    await embedded.say("bert", {"state": "Failed"})
    done = await finished(following)
    assert (done.code, done.out) == (1, "of attempt 1\n")


async def test_following_goes_on_when_a_suspended_job_is_resumed(embedded: CommandLab) -> None:
    await bert(embedded, state="Running")
    await live(embedded, attempt=0, name="short-before")
    following = await follow(embedded)
    await embedded.say("bert", {"state": "Suspended"})
    assert following.stderr is not None
    said = (await following.stderr.readline()).decode()
    assert said == "holdfast: trial/bert is suspended: its log goes on when it is resumed\n"
    await embedded.cluster.delete(PODS, Key(embedded.namespace, "short-before"), DeleteOptions(grace_period_s=0))
    await live(embedded, attempt=0, name="short-after")
    await embedded.say("bert", {"state": "Completed"})
    done = await finished(following)
    assert (done.code, done.out, done.err) == (0, LIVE, "holdfast: following attempt 0\n")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            {"reason": "OOMKilled", "exitCode": "137"},
            "worker 0 of attempt 0 exited with code 137 (OOMKilled) on gpu-3 at",
        ),
        ({"exitCode": "137"}, "worker 0 of attempt 0 was killed (SIGKILL) on gpu-3 at"),
        ({"container": "fetch"}, "container fetch of worker 0 of attempt 0 exited with code 3 on gpu-3 at"),
        ({"exitCode": "", "reason": "", "finishedAt": ""}, "worker 0 of attempt 0 on gpu-3: the end"),
    ],
)
async def test_how_the_worker_ended_is_said_beside_its_log(
    embedded: CommandLab, facts: dict[str, str], said: str
) -> None:
    await bert(embedded)
    await keep(embedded, "kept\n", facts={**FACTS, **facts})
    done = await embedded.holdfast("logs", "bert")
    assert (done.code, done.out) == (0, "kept\n")
    assert said in done.err


async def test_only_the_container_that_was_kept_is_shown(embedded: CommandLab) -> None:
    await bert(embedded)
    await keep(embedded, "kept\n")
    assert await embedded.good("logs", "bert", "-c", "trainer") == "kept\n"
    assert "attempt 0 (worker 0)" in await embedded.refused("logs", "bert", "-c", "holdfast-sidecar")


async def test_what_is_kept_of_an_earlier_job_of_the_name_is_not_shown(embedded: CommandLab) -> None:
    await bert(embedded)
    job = await embedded.cluster.get(TRAINING_JOBS, Key(embedded.namespace, "bert"))
    stale: JSON = worker_log_config_map(job, 0, b"theirs\n", FACTS)
    del stale["metadata"]["ownerReferences"]
    await embedded.cluster.create(CONFIG_MAPS, stale, namespace=embedded.namespace)
    assert "no log of a failed worker is kept" in await embedded.refused("logs", "bert")


@pytest.fixture
async def mute_node(lab: CommandLab) -> AsyncIterator[str]:
    """A machine whose pods' logs nobody can read."""
    name = f"mute-{lab.namespace}"
    await lab.cluster.create(NODES, {"metadata": {"name": name}})
    yield name
    await lab.cluster.delete(NODES, Key("", name))


async def test_a_pod_that_can_not_be_read_is_shown_as_it_was_kept(lab: CommandLab, mute_node: str) -> None:
    await bert(lab)
    await keep(lab, "kept\n")
    for worker in ("0", "1"):
        labels = {JOB_LABEL: "bert", ATTEMPT_LABEL: "0", INDEX_LABEL: worker}
        container = {"name": "trainer", "image": "registry.invalid/trainer:1"}
        spec = {"nodeName": mute_node, "restartPolicy": "Never", "containers": [container]}
        body = {"metadata": {"name": f"mute-{worker}", "labels": labels}, "spec": spec}
        await lab.cluster.create(PODS, body, namespace=lab.namespace)
    assert await lab.good("logs", "bert") == "kept\n"
    assert await lab.good("logs", "pod/mute-0") == "kept\n"
    assert "mute-1" in await lab.refused("logs", "bert", "--worker=1")


async def test_an_attempt_of_a_pod_makes_no_sense(embedded: CommandLab) -> None:
    await embedded.pod("alone", {})
    assert "leave --attempt out" in await embedded.refused("logs", "pod/alone", "--attempt", "0", code=2)
    assert "leave --attempt out" in await embedded.refused("logs", "alone", "--attempt", "0", code=2)
    assert "leave --attempt out" not in await embedded.refused("logs", "nobody", "--attempt", "0")
