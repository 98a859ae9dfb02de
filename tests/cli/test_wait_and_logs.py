"""wait and logs, on both engines."""

import asyncio

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.resources import PODS
from holdfast.trainingjob.objects.names import ATTEMPT_LABEL, INDEX_LABEL, JOB_LABEL
from tests.cli.lab import CommandLab, condition, finished, interrupted, line_of
from tests.contract.kinds import TRAINING_JOBS

BERT = "trainingjob.ml.example.com/bert"


async def test_waiting_ends_when_the_condition_holds(lab: CommandLab) -> None:
    await lab.job("bert")
    waiting = await lab.start("wait", "tj/bert", "--for=condition=succeeded", "--timeout=5m")
    await lab.say("bert", {"conditions": [condition("Succeeded", status="False")]})
    await lab.say("bert", {"conditions": [condition("Succeeded")]})
    assert await finished(waiting) == (0, f"{BERT} condition met\n", "")
    assert await lab.good("wait", "tj", "bert", "--for=condition=Succeeded", "--timeout=0") != ""


async def test_waiting_ends_when_a_field_has_the_value(lab: CommandLab) -> None:
    await lab.job("bert", {"state": "Running"})
    await lab.good("wait", "tj/bert", "--for=jsonpath={.status.state}=Running")
    await lab.good("wait", "tj/bert", "--for=jsonpath={.spec.numWorkers}")


async def test_a_wait_that_takes_too_long_says_how_the_object_stands(lab: CommandLab) -> None:
    await lab.job("bert", {"state": "Pending", "message": "no node has room"})
    said = await lab.refused("wait", "tj/bert", "--for=condition=Succeeded", "--timeout=500ms")
    assert said == (
        f"holdfast: {BERT}: timed out after 500ms waiting for condition Succeeded; it is Pending: no node has room\n"
    )


@pytest.mark.parametrize("goal", ["condition=Succeeded", "jsonpath={.status.state}=Completed"])
async def test_a_wait_for_what_can_t_come_any_more_ends_at_once(embedded: CommandLab, goal: str) -> None:
    await embedded.job("bert")
    waiting = await embedded.start("wait", "tj/bert", f"--for={goal}", "--timeout=5m")
    await embedded.say("bert", {"state": "Failed", "conditions": [condition("Failed", message="out of memory")]})
    done = await finished(waiting)
    assert done.code == 1
    assert done.err.startswith(f"holdfast: {BERT} will not reach ")
    assert done.err.endswith("it has ended as Failed: out of memory\n")


async def test_waiting_for_what_is_deleted_meanwhile_ends(embedded: CommandLab) -> None:
    await embedded.job("bert")
    waiting = await embedded.start("wait", "tj/bert", "--for=condition=Running", "--timeout=5m")
    going = await embedded.start("wait", "tj/bert", "--for=delete", "--timeout=5m")
    await asyncio.sleep(0)
    await embedded.cluster.delete(TRAINING_JOBS, Key(embedded.namespace, "bert"))
    assert await finished(going) == (0, f"{BERT} condition met\n", "")
    done = await finished(waiting)
    assert done.code == 1
    assert "was deleted while it was waited for" in done.err or "not found" in done.err
    assert "not found" in await embedded.refused("wait", "tj/bert", "--for=condition=Running")


async def workers(lab: CommandLab, count: int = 2) -> None:
    await lab.job("bert", {"restartCount": 1}, numWorkers=count)
    await worker(lab, 0, attempt=0, name="bert-old")
    for number in range(count):
        await worker(lab, number, attempt=1, name=f"bert-{number}")


async def worker(lab: CommandLab, number: int, *, attempt: int, name: str) -> None:
    labels = {JOB_LABEL: "bert", ATTEMPT_LABEL: str(attempt), INDEX_LABEL: str(number)}
    await lab.pod(name, labels)


async def test_the_log_of_a_job_is_that_of_its_first_worker(lab: CommandLab) -> None:
    await workers(lab)
    assert await lab.good("logs", "bert") == "line 1\nline 2\nline 3\n"
    assert await lab.good("logs", "pod/bert-1", "--tail", "1") == "line 3\n"
    everyone = await lab.good("logs", "tj/bert", "--all", "--tail=1")
    assert everyone == "[0] line 3\n[1] line 3\n"
    assert "2 workers, 0 to 1" in await lab.refused("logs", "bert", "--worker", "7")


async def test_following_a_log_goes_on_until_ctrl_c(lab: CommandLab) -> None:
    await workers(lab, 1)
    following = await lab.start("logs", "-f", "bert")
    assert [await line_of(following) for _ in range(3)] == ["line 1\n", "line 2\n", "line 3\n"]
    assert await interrupted(following) == (130, "", "")


async def test_following_a_log_ends_with_the_pod(embedded: CommandLab) -> None:
    await embedded.pod("short", {})
    assert await embedded.good("logs", "-f", "short") == "line 1\nline 2\nline 3\n"


async def test_following_several_workers_keeps_their_lines_whole(embedded: CommandLab) -> None:
    await embedded.job("bert", {"state": "Completed"})
    for number in (0, 1):
        await worker(embedded, number, attempt=0, name=f"short-{number}")
    lines = (await embedded.good("logs", "-f", "--all", "bert")).splitlines()
    assert sorted(lines) == [f"[{number}] line {line}" for number in (0, 1) for line in (1, 2, 3)]


async def test_following_waits_for_workers_that_are_not_there_yet(embedded: CommandLab) -> None:
    await embedded.job("bert", numWorkers=1)
    following = await embedded.start("logs", "-f", "bert")
    labels = {JOB_LABEL: "bert", ATTEMPT_LABEL: "0", INDEX_LABEL: "0"}
    await embedded.pod("short-0", labels)
    await embedded.say("bert", {"state": "Completed"})
    assert (await finished(following)).out == "line 1\nline 2\nline 3\n"


async def test_a_log_that_is_not_there_is_said_so(embedded: CommandLab) -> None:
    assert "no TrainingJob, GPUWorkload, SpotInstanceJob or pod 'bert'" in await embedded.refused("logs", "bert")
    assert "not found" in await embedded.refused("logs", "pod/bert")
    await embedded.job("bert", {"state": "Pending", "message": "no node has room"})
    assert "it is Pending: no node has room" in await embedded.refused("logs", "bert")
    assert (await embedded.cluster.list(PODS, namespace=embedded.namespace)).items == ()


async def test_what_a_job_says_does_not_command_the_terminal(embedded: CommandLab) -> None:
    await embedded.job("bert", {"state": "Pending", "message": "\x1b[2Jcleared"})
    asked = (["wait", "tj/bert", "--for=condition=Succeeded", "--timeout=0"], ["logs", "bert"])
    for said in [await embedded.refused(*command) for command in asked]:
        assert r"Pending: \x1b[2Jcleared" in said
        assert "\x1b" not in said


async def test_a_pod_whose_number_is_none_is_no_worker(embedded: CommandLab) -> None:
    await embedded.job("bert")
    labels = {JOB_LABEL: "bert", ATTEMPT_LABEL: "0"}
    await embedded.pod("stray", {**labels, INDEX_LABEL: "first"})
    assert "no log of worker 0" in await embedded.refused("logs", "bert")
    await embedded.pod("bert-0", {**labels, INDEX_LABEL: "0"})
    await embedded.good("logs", "bert", "--all")
