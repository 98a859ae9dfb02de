"""Runs on a node that its cloud takes back: none is begun that would not be done in time."""

from holdfast.node.notice.time_left import RunDurations
from tests.node.lab import AgentLab


async def test_a_run_that_would_outlast_the_node_fails_at_once_and_freezes_nothing(lab: AgentLab) -> None:
    await lab.start()
    await lab.begin()
    remaining_s: list[float | None] = [None]
    durations = RunDurations()
    async with lab.agent(durations=durations, remaining_s=lambda: remaining_s[0]):
        first = await lab.ended()
        assert first.phase == "Completed"
        assert durations.last_s(first.pod_uid) is not None, "the run has told how long one takes"
        durations.ended(first.pod_uid, 40.0)
        remaining_s[0] = 25.0
        await lab.begin("on-notice")
        status = await lab.ended("on-notice")
        assert status.phase == "Failed"
        assert status.message == (
            "the cloud takes the node back in 25 s, and the last run took 40 s: its image would not be pushed in time"
        )
        assert {condition.reason for condition in status.conditions} == {"NodePreempted"}
        assert len(lab.kubelet.calls) == 1
        durations.ended(first.pod_uid, 3.0)
        await lab.begin("in-time")
        assert (await lab.ended("in-time")).phase == "Completed"
    assert lab.leftovers() == []


async def test_a_notice_within_a_run_ends_it_before_the_next_container_is_frozen(lab: AgentLab) -> None:
    await lab.start("first", "second")
    await lab.begin()
    # The notice comes while the first container is frozen.
    async with lab.agent(remaining_s=lambda: 0.0 if lab.kubelet.calls else None):
        status = await lab.ended()
    assert [call.target for call in lab.kubelet.calls] == ["team/numbers/first"]
    assert status.phase == "CompletedWithError"
    assert "not saved: second: the cloud takes the node back, and its time is over" in str(status.message)
