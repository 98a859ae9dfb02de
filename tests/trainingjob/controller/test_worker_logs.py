"""Logs of failed workers are kept, whatever the logs are like and whatever stands in the way."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.core.objects import ConfigMap, Pod
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.errors import ClusterError, NotFound, ServerError
from holdfast.cluster.protocol import Cluster, DeleteOptions
from holdfast.cluster.resources import CONFIG_MAPS, NAMESPACES, PODS, TRAINING_JOBS
from holdfast.decisions import Retry
from holdfast.local.apiserver.server import open_cluster
from holdfast.local.kubelet.logs import tail_log
from holdfast.pods.failure import WorkerFailure
from holdfast.runtime.process import utc_now
from holdfast.trainingjob.decide.decision import StartNewAttempt
from holdfast.trainingjob.decide.snapshot import TrainingJobSnapshot
from holdfast.trainingjob.objects.environment import MAX_LOG_BYTES, worker_log_config_map
from holdfast.trainingjob.worker_logs import FIRST_LINES, MOST_BYTES, log_tail, save_worker_logs
from tests.contract.engine import Engine
from tests.contract.pods import INDEX, pod_spec
from tests.contract.pool import Pool
from tests.contract.waiting import gone, until
from tests.trainingjob.controller.lab import TrainingJobLab
from tests.trainingjobs import failed, node, stamp

BROKEN = StartNewAttempt(Retry(WorkerFailure(cause="application", message="as told"), None, 1))
# containerd writes a line as pieces of at most so much, each counted as a line of its own.
PIECE = 16 * 1024


class Reader:
    """A log as machines give it: so many lines from the end, and of these the first bytes."""

    def __init__(self, content: bytes, *, pieces: bool = False) -> None:
        self._content = content
        self._pieces = _pieces(content) if pieces else None
        self.asked: list[int] = []

    async def __call__(self, lines: int, limit: int | None) -> bytes:
        self.asked.append(lines)
        text = tail_log(self._content, lines) if self._pieces is None else b"".join(self._pieces[-lines:])
        return text[:limit]


def _pieces(content: bytes) -> list[bytes]:
    return [
        line[start : start + PIECE]
        for line in content.splitlines(keepends=True)
        for start in range(0, len(line), PIECE)
    ]


def written(runs: list[tuple[int, int]]) -> bytes:
    """Runs of lines, each of one length; no two lines are alike."""
    lines = (f"{number}.{length}:".encode() + b"x" * length for length, count in runs for number in range(count))
    return b"\n".join(lines)[-4 * MOST_BYTES :]


@pytest.mark.parametrize("pieces", [False, True], ids=["lines", "pieces"])
@settings(max_examples=60, deadline=None)
@given(runs=st.lists(st.tuples(st.integers(0, 40_000) | st.integers(0, 80), st.integers(1, 4_000)), max_size=4))
@example(runs=[])
@example(runs=[(0, 200_000)])
@example(runs=[(3 * MOST_BYTES, 1)])
@example(runs=[(3 * MOST_BYTES, 1), (5, 10)])
@example(runs=[(MOST_BYTES, 1), (20, FIRST_LINES)])
@example(runs=[(PIECE // 2, FIRST_LINES)])
async def test_the_end_of_a_log_is_its_last_64_kib_whatever_its_lines_are_like(
    runs: list[tuple[int, int]], pieces: bool
) -> None:
    content = written(runs)
    reader = Reader(content, pieces=pieces)
    assert await log_tail(reader) == content[-MAX_LOG_BYTES:]
    assert len(reader.asked) <= 20


@pytest.mark.parametrize("content", [b"", b"short\n", b"an ordinary line of a training's log, not too short\n" * 5000])
async def test_an_ordinary_log_is_read_at_once(content: bytes) -> None:
    reader = Reader(content)
    assert await log_tail(reader) == content[-MAX_LOG_BYTES:]
    assert reader.asked == [FIRST_LINES]


class Said:
    """The logs of pods, by name: text, a refusal, or None where nobody answers."""

    def __init__(self) -> None:
        self.texts: dict[str, bytes | ClusterError | None] = {}
        self.containers: list[str] = []

    async def read(self, key: Key, container: str, lines: int | None, limit: int | None) -> bytes:
        self.containers.append(container)
        text = self.texts[key.name]
        if text is None:
            await asyncio.Event().wait()
        if isinstance(text, ClusterError):
            raise text
        assert text is not None
        return (text if lines is None else tail_log(text, lines))[:limit]


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
async def box(said: Said) -> AsyncIterator[Cluster]:
    """A cluster of which nothing runs but its API."""
    cluster = await open_cluster(None, now=utc_now, rng=Random(0), pod_logs=said.read)
    await cluster.create(NAMESPACES, {"metadata": {"name": "ml"}})
    spec = {"model": "cnn", "dataset": "mnist", "numWorkers": 2}
    await cluster.create(TRAINING_JOBS, {"metadata": {"name": "bert"}, "spec": spec}, namespace="ml")
    yield cluster
    await cluster.close()


async def job_in(cluster: Cluster, attempt: int = 0) -> TrainingJob:
    return await cluster.patch_status(TRAINING_JOBS, Key("ml", "bert"), {"status": {"restartCount": attempt}})


async def break_attempt(
    cluster: Cluster, said: Said, *texts: bytes | ClusterError | None, attempt: int = 0, within_s: float = 60.0
) -> None:
    """Workers of these logs fail, the first first."""
    pods = [failed(index, 3, at=stamp(index)) for index in range(len(texts))]
    for pod, text in zip(pods, texts, strict=True):
        if pod.metadata.name not in said.texts:
            body = {"metadata": {"name": pod.metadata.name}, "spec": pod_spec("none")}
            await cluster.create(PODS, body, namespace="ml")
        said.texts[pod.metadata.name] = text
    observed = TrainingJobSnapshot(job=await job_in(cluster, attempt), pods=tuple(pods), nodes={"gpu-3": node()})
    await save_worker_logs(cluster, observed, BROKEN, within_s=within_s)


async def kept(cluster: Cluster) -> dict[str, str]:
    """The texts, by name."""
    found = (await cluster.list(CONFIG_MAPS, namespace="ml")).items
    return {each.metadata.name: each.data["log"] for each in found if "log" in each.data}


async def test_each_log_is_kept_in_a_config_map_of_the_job(box: Cluster, said: Said) -> None:
    await break_attempt(box, said, b"first\n", b"second\n", attempt=2)
    assert await kept(box) == {"bert-log-2-0": "first\n", "bert-log-2-1": "second\n"}
    job = await box.get(TRAINING_JOBS, Key("ml", "bert"))
    one = await box.get(CONFIG_MAPS, Key("ml", "bert-log-2-1"))
    assert one.metadata.controller is not None
    assert one.metadata.controller.uid == job.metadata.uid
    facts = {"container": "trainer", "node": "gpu-3", "exitCode": "3", "reason": "Error", "finishedAt": stamp(1)}
    assert {**one.data, **facts} == one.data
    assert one.data["pod"] == "bert-training-1-abcde"
    assert set(said.containers) == {"trainer"}


async def test_a_log_that_can_not_be_read_does_not_cost_the_others(box: Cluster, said: Said) -> None:
    await break_attempt(box, said, ServerError("the node has gone"), b"second\n", NotFound("no such container"))
    assert await kept(box) == {"bert-log-0-1": "second\n"}


async def test_a_node_that_does_not_answer_holds_up_nothing_for_long(box: Cluster, said: Said) -> None:
    async with asyncio.timeout(60):
        await break_attempt(box, said, None, b"second\n", within_s=1.0)
    assert await kept(box) == {"bert-log-0-1": "second\n"}


async def test_what_was_kept_before_a_crash_stays_and_the_rest_is_added(box: Cluster, said: Said) -> None:
    await break_attempt(box, said, b"first\n")
    await break_attempt(box, said, b"", b"second\n")
    assert await kept(box) == {"bert-log-0-0": "first\n", "bert-log-0-1": "second\n"}


async def test_a_config_map_of_somebody_else_is_left_alone(box: Cluster, said: Said) -> None:
    await box.create(CONFIG_MAPS, {"metadata": {"name": "bert-log-0-0"}, "data": {"log": "theirs"}}, namespace="ml")
    await break_attempt(box, said, b"ours\n")
    assert await kept(box) == {"bert-log-0-0": "theirs"}


async def test_worker_0_is_kept_of_sixteen_attempts_and_the_others_of_three(box: Cluster, said: Said) -> None:
    for attempt in range(18):
        await break_attempt(box, said, b"0\n", b"1\n", attempt=attempt)
    of_0 = {f"bert-log-{attempt}-0": "0\n" for attempt in range(2, 18)}
    assert await kept(box) == {**of_0, **{f"bert-log-{attempt}-1": "1\n" for attempt in (15, 16, 17)}}


async def test_attempts_without_logs_make_room_too(box: Cluster, said: Said) -> None:
    await break_attempt(box, said, b"0\n", b"0\n", attempt=0)
    await break_attempt(box, said, b"70\n", attempt=70)
    assert list(await kept(box)) == ["bert-log-70-0"]


async def test_old_logs_of_others_are_never_deleted(box: Cluster, said: Said) -> None:
    job = await job_in(box)
    body = worker_log_config_map(job, 0, b"theirs", {})
    del body["metadata"]["ownerReferences"]
    await box.create(CONFIG_MAPS, body, namespace="ml")
    namesake = worker_log_config_map(
        structs.replace(job, metadata=structs.replace(job.metadata, name="bert-2")), 0, b"other", {}
    )
    namesake["metadata"]["ownerReferences"][0]["name"] = "bert"
    await box.create(CONFIG_MAPS, namesake, namespace="ml")
    await break_attempt(box, said, b"9\n", attempt=9)
    assert await kept(box) == {"bert-log-0-0": "theirs", "bert-2-log-0-0": "other", "bert-log-9-0": "9\n"}


async def test_bytes_that_are_no_text_are_kept_as_far_as_they_can_be_read(box: Cluster, said: Said) -> None:
    await break_attempt(box, said, b"\x1b[31mloss \xff nan\x00\x1b[0m\n")
    assert await kept(box) == {"bert-log-0-0": "\x1b[31mloss � nan\x00\x1b[0m\n"}


async def ended_worker(lab: TrainingJobLab, pool: Pool, engine: Engine) -> Pod:
    labels = {INDEX: "0", "training-job": "bert", "holdfast.dev/attempt": "0"}
    container = {"name": "trainer", "image": "registry.invalid/trainer:1"}
    spec = pod_spec(lab.namespace, containers=[container])
    made = await lab.cluster.create(
        PODS, {"metadata": {"name": "w", "labels": labels}, "spec": spec}, namespace=lab.namespace
    )
    await pool.running(1)
    await engine.end_pod(made.metadata.key, exit_code=3)
    return await until(lab.cluster, PODS, made.metadata.key, lambda pod: pod.is_finished, "has ended")


@pytest.mark.every_engine
async def test_on_every_engine_the_log_outlives_its_pod_and_goes_with_its_job(
    lab: TrainingJobLab, pool: Pool, engine: Engine
) -> None:
    machine = await pool.add()
    await lab.submit()
    pod = await ended_worker(lab, pool, engine)
    job = await lab.cluster.get(TRAINING_JOBS, lab.key("bert"))
    observed = TrainingJobSnapshot(job=job, pods=(pod,), nodes={machine: node(machine)})
    await save_worker_logs(lab.cluster, observed, BROKEN)
    await lab.cluster.delete(PODS, pod.metadata.key, DeleteOptions(grace_period_s=0))

    def is_whole(one: ConfigMap) -> bool:
        return one.data["log"] == "line 1\nline 2\nline 3\n"

    await until(lab.cluster, CONFIG_MAPS, lab.key("bert-log-0-0"), is_whole, "is kept")
    await lab.cluster.delete(TRAINING_JOBS, job.metadata.key)
    await gone(lab.cluster, CONFIG_MAPS, lab.key("bert-log-0-0"))
