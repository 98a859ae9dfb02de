"""Whatever happens in whatever order, a replica has one live attempt, a need one machine, and the job goes on."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.scheduling.nodes import node
from tests.spotinstancejob.machines import template
from tests.spotinstancejob.world import SpotWorld

T = TypeVar("T")
Act: TypeAlias = Callable[[SpotWorld, int], None]


def pick(things: list[T], number: int) -> list[T]:
    """One of them, if there is any."""
    return [things[number % len(things)]] if things else []


def booting(world: SpotWorld) -> list[str]:
    return [name for name, each in world.machines.items() if each.status is None]


def serving(world: SpotWorld) -> list[str]:
    return [name for name, each in world.machines.items() if each.status is not None and each.status.phase == "Serve"]


def ending(world: SpotWorld) -> list[str]:
    return [
        name
        for name, each in world.machines.items()
        if each.status is not None and (each.status.phase, each.status.step) == ("End", "Deleting")
    ]


def running(world: SpotWorld) -> list[str]:
    return [
        name
        for name, pod in world.pods.items()
        if pod.status.phase == "Running" and pod.spec.node_name in world.power and not pod.is_terminating
    ]


def each_of(find: Callable[[SpotWorld], list[str]], act: Callable[[SpotWorld, str], object]) -> Act:
    def do(world: SpotWorld, number: int) -> None:
        for found in pick(find(world), number):
            act(world, found)

    return do


def silence(world: SpotWorld, machine: str, *, off: bool) -> None:
    status = world.machines[machine].status
    if status is not None and status.node_name in world.nodes:
        world.silence(status.node_name, off=off)


def lose_node(world: SpotWorld, number: int) -> None:
    for name in pick([name for name in world.nodes if not name.startswith("holdfast-")], number):
        world.power.discard(name)
        del world.nodes[name]
        for job, pod in list(world.pods.items()):
            if pod.spec.node_name == name and not pod.is_finished:
                world.lose_pod(job)


ACTS: dict[str, Act] = {
    "machine comes up": each_of(booting, SpotWorld.bring_up),
    "stockout": each_of(booting, SpotWorld.refuse),
    "join fails": each_of(booting, lambda world, name: world.fail_join(name, gone=False)),
    "machine is gone": each_of(ending, lambda world, name: world.fail_join(name, gone=True)),
    "preempted while it boots": each_of(booting, SpotWorld.preempt),
    "notice": each_of(serving, SpotWorld.notice),
    "preemption": each_of(serving, SpotWorld.preempt),
    "power cut": each_of(serving, partial(silence, off=True)),
    "network cut": each_of(serving, partial(silence, off=False)),
    "cloud away": lambda world, _: setattr(world, "cloud_is_down", True),
    "cloud back": lambda world, _: setattr(world, "cloud_is_down", False),
    "object deleted": each_of(serving, lambda world, name: world.delete_machine(name)),
    "node deleted": each_of(serving, SpotWorld.delete_node),
    "own node lost": lose_node,
    "checkpoint pushed": each_of(SpotWorld.open_backups, SpotWorld.push),
    "checkpoint failed": each_of(SpotWorld.open_backups, SpotWorld.fail_backup),
    "program fails": each_of(running, lambda world, name: world.end_pod(name, 1)),
    "out of memory": each_of(running, lambda world, name: world.end_pod(name, 137, reason="OOMKilled")),
    "suspend": lambda world, _: world.change(suspend=True),
    "resume": lambda world, _: world.change(suspend=False),
    "more replicas": lambda world, number: world.change(replicas=2 + number % 2),
    "fewer replicas": lambda world, _: world.change(replicas=1),
    "registry away": lambda world, _: setattr(world, "registry_is_down", True),
    "registry back": lambda world, _: setattr(world, "registry_is_down", False),
    "time": lambda world, number: world.advance((5, 45, 120, 700, 4000)[number % 5]),
}
UP = "machine comes up"
FAILED = (("checkpoint failed", 0, None), (UP, 0, None), ("time", 3, None))
# What all stories need comes more often.
OFTEN = ("machine comes up", "machine comes up", "notice", "preemption", "time", "checkpoint pushed")
events = st.lists(
    st.tuples(st.sampled_from([*sorted(ACTS), *OFTEN]), st.integers(0, 9), st.sampled_from([None, None, 1, 2, 3])),
    max_size=40,
)


def happen(world: SpotWorld, story: list[tuple[str, int, int | None]]) -> None:
    """Each event, and the operator's answer; `dies` is at which of its writes the operator dies, if it does."""
    for event, number, dies in story:
        if world.status.phase in ("Succeeded", "Failed"):
            return
        world.dies_at = world.writes + dies if dies is not None else None
        ACTS[event](world, number)
        world.settle()


def heal(world: SpotWorld) -> None:
    """From now on everything works."""
    world.registry_is_down = world.cloud_is_down = False
    world.change(suspend=False)
    for _ in range(30):
        for name in [*booting(world)]:
            world.bring_up(name)
        for name in ending(world):
            world.fail_join(name, gone=True)
        for name in list(world.machines):
            status = world.machines[name].status
            is_silent = (
                status is not None and status.node_name in world.nodes and not world.nodes[status.node_name].is_ready
            )
            if is_silent or (status is not None and status.preemption_notice):
                world.preempt(name)
        for name in world.open_backups():
            world.push(name)
        world.advance(60)


@settings(max_examples=150, deadline=None)
@given(story=events, has_node=st.booleans())
@example(story=[(UP, 0, None), (UP, 0, None), ("preemption", 0, 1)], has_node=False)
# A replica whose machine was only announced to go runs until its next attempt has all that it needs.
@example(
    story=[(UP, 0, None), (UP, 0, None), ("notice", 0, 1), ("checkpoint pushed", 0, None), (UP, 0, None)],
    has_node=False,
)
# A machine that nobody hears of and that the cloud does not delete may still run its replica.
@example(
    story=[(UP, 0, None), (UP, 0, None), ("cloud away", 0, None), ("network cut", 0, None), ("time", 3, None), *FAILED],
    has_node=False,
)
@example(
    story=[(UP, 0, None), (UP, 0, None), ("cloud away", 0, None), ("node deleted", 0, None), *FAILED], has_node=False
)
def test_any_order_of_events_leaves_one_attempt_and_one_machine_and_the_job_goes_on(
    story: list[tuple[str, int, int | None]], has_node: bool
) -> None:
    world = SpotWorld(*([node("own-gpu", gpus=1)] if has_node else []), vm=template("us-central1-b", "us-east1-b"))
    world.settle()
    happen(world, story)
    heal(world)
    if world.status.phase != "Failed":
        assert {each.phase for each in world.status.job_statuses} <= {"Running", "Failed"}, world.status.message
        assert len(world.status.job_statuses) == world.job.spec.replicas
        (first, *_) = running(world)
        world.end_pod(first)
        world.settle()
        assert world.status.phase == "Succeeded"
    assert world.machines == {}
    assert all(pod.is_finished for pod in world.pods.values())
    assert world.open_backups() == []


@settings(max_examples=50, deadline=None)
@given(story=events)
def test_a_settled_job_writes_nothing(story: list[tuple[str, int, int | None]]) -> None:
    world = SpotWorld()
    world.settle()
    happen(world, story)
    writes = world.writes
    world.settle()
    assert world.writes == writes
