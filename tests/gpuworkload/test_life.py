"""Whole lives of workloads in a world whose operator may forget all it has in memory."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.api.core.objects import Pod
from holdfast.gpuworkload.snapshot import TIMING
from holdfast.scheduling.ledger import GPU
from tests.gpuworkload.world import World, gpu_node


def test_a_workload_goes_through_its_phases_and_ends() -> None:
    world = World(gpu_node("a"))
    world.create("w", 2)
    world.turn()
    world.end("w")
    world.turn()
    assert world.phases["w"] == ["Scheduling", "Scheduled", "Running", "Succeeded"]
    status = world.status("w")
    assert (status["assignedNode"], status["jobName"], status.get("retryCount", 0)) == ("a", "w-job", 0)
    assert dict(world.ledger.reservations) == {}


def test_a_settled_world_writes_nothing() -> None:
    world = World(gpu_node("a", 2))
    for number in range(3):
        world.create(f"w-{number}", 2)
    world.turn()
    writes = world.writes
    for _ in range(5):
        world.turn()
    assert world.writes == writes


def test_workloads_that_wait_say_so_and_start_with_the_next_pass() -> None:
    world = World(gpu_node("a", 2))
    world.create("first", 2)
    world.turn()
    world.create("second", 2)
    world.turn()
    assert world.status("second")["message"] == "needs 2 GPUs on one node; no node has any free; 1st in line"
    world.end("first")
    world.turn()
    assert world.phases["second"] == ["Pending", "Scheduling", "Scheduled", "Running"]


def test_a_failure_is_tried_again_elsewhere_after_its_wait_and_ends_when_retries_are_used_up() -> None:
    world = World(gpu_node("a", 8), gpu_node("b", 4))
    world.create("w", 2, retryPolicy={"maxRetries": 1, "backoffSeconds": 30})
    world.turn()
    world.end("w", 3)
    world.turn()
    assert world.status("w")["message"].startswith("its pod on a exited with code 3; next try at ")
    assert "w-job" in world.jobs  # to be looked at meanwhile
    world.turn(20)
    assert world.phases["w"][-1] == "Pending"
    world.turn(20)
    status = world.status("w")
    assert (status["assignedNode"], status["jobName"], status["retryCount"]) == ("b", "w-job-1", 1)
    assert list(world.jobs) == ["w-job-1"]
    world.end("w", 3)
    world.turn()
    assert world.status("w")["message"] == "its pod on b exited with code 3 (after 1 of 1 retries)"
    assert world.phases["w"][-2:] == ["Running", "Failed"]
    world.turn(1000)
    assert list(world.jobs) == ["w-job-1"]


def test_the_node_that_failed_it_is_taken_again_if_there_is_no_other() -> None:
    world = World(gpu_node("a"))
    world.create("w", 2, retryPolicy={"backoffSeconds": 1})
    world.turn()
    world.end("w", 3)
    world.turn()
    world.turn(5)
    assert world.status("w")["assignedNode"] == "a"


def test_a_node_is_avoided_only_once() -> None:
    world = World(gpu_node("a", 8), gpu_node("b", 4))
    world.create("w", 2, retryPolicy={"backoffSeconds": 1, "maxRetries": 5})
    seen = []
    for _ in range(3):
        world.turn()
        world.turn(10)
        seen.append(world.status("w")["assignedNode"])
        world.end("w", 3)
    assert seen == ["a", "b", "a"]


def test_a_node_that_vanishes_is_replaced_without_counting() -> None:
    world = World(gpu_node("a", 8), gpu_node("b", 4))
    world.create("w", 2)
    world.turn()
    world.lose("a")
    world.turn()
    status = world.status("w")
    assert (status["assignedNode"], status["jobName"], status.get("retryCount", 0)) == ("b", "w-job-1", 0)
    assert world.phases["w"] == ["Scheduling", "Scheduled", "Running", "Pending", "Scheduling", "Scheduled", "Running"]


def test_a_pod_bound_by_hand_to_the_chosen_node_makes_the_workload_go_elsewhere() -> None:
    world = World(gpu_node("a", 8), gpu_node("b", 4))
    world.create("w", 2)
    world.scheduler_works = False
    world.turn()
    intruder = {"nodeName": "a", "containers": [{"resources": {"limits": {GPU: "8"}}}]}
    world.set_pod("x", msgspec.convert({"metadata": {"name": "x", "namespace": "ml"}, "spec": intruder}, Pod))
    world.scheduler_works = True
    world.turn()
    assert world.status("w")["message"] == "its pod can't start on a yet: Insufficient nvidia.com/gpu"
    world.turn(TIMING.bind_timeout_s - 1)
    assert world.status("w")["assignedNode"] == "a"
    world.turn(1)
    assert world.status("w")["message"] == "waiting for its pod to stop before the next try"
    world.turn(1)
    assert (world.status("w")["assignedNode"], world.status("w").get("retryCount", 0)) == ("b", 0)
    assert world.ledger.free("a")[GPU] == 0  # the intruder's alone


@pytest.mark.parametrize("late", ["job_controller_works", "scheduler_works"])
def test_a_cluster_that_makes_or_binds_no_pods_for_long_gets_no_more_jobs(late: str) -> None:
    """Ten minutes and more: each keeps its node and its one Job, and the others wait for GPUs."""
    world = World(gpu_node("a", 4), gpu_node("b", 4))
    setattr(world, late, False)
    for number in range(9):
        world.create(f"w-{number}", 2)
    for _ in range(10):
        world.turn(TIMING.bind_timeout_s)
        assert len(world.made) == 4
        assert {name: promised(world, name) for name in world.nodes} == {"a": 4, "b": 4}
    who = {"job_controller_works": "Job controller", "scheduler_works": "scheduler"}[late]
    assert world.status("w-0")["message"] == f"its pod can't start on a yet: the {who} has not looked at it yet"
    setattr(world, late, True)
    world.turn()
    world.turn()
    assert [world.status(f"w-{number}")["phase"] for number in range(9)] == ["Running"] * 4 + ["Pending"] * 5


def test_a_workload_that_every_node_refuses_comes_back_ever_more_slowly_and_holds_no_node_meanwhile() -> None:
    """A node that shows GPUs to us and not to the scheduler: no other has any."""
    world = World(gpu_node("a", 2))
    intruder = {"nodeName": "a", "containers": [{"resources": {"limits": {GPU: "2"}}}]}
    world.create("w", 2)
    world.scheduler_works = False
    world.turn()
    hidden = msgspec.convert({"metadata": {"name": "x", "namespace": "ml"}, "spec": intruder}, Pod)
    world.pods["x"] = hidden  # of which the ledger is not told
    world.scheduler_works = True
    held_s = 0
    for _ in range(3600):
        world.turn()
        held_s += world.status("w").get("assignedNode") is not None
    assert len(world.made) < 3600 / TIMING.bind_timeout_s / 2
    assert held_s <= 3600 / 2
    assert world.status("w").get("retryCount", 0) == 0


def test_suspending_gives_the_gpus_to_waiting_workloads_and_resuming_waits_in_turn() -> None:
    world = World(gpu_node("a", 2))
    world.create("first", 2)
    world.turn()
    world.create("second", 2)
    world.change("first", suspend=True)
    world.turn()
    world.turn()
    assert (world.status("first")["phase"], world.status("second")["phase"]) == ("Pending", "Running")
    assert world.status("first").get("assignedNode") is None
    world.change("first", suspend=False)
    world.turn()
    assert world.status("first")["message"].endswith("no node has any free; 1st in line")
    world.end("second")
    world.turn()
    status = world.status("first")
    assert (status["phase"], status["jobName"], status.get("retryCount", 0)) == ("Running", "first-job-1", 0)


@pytest.mark.parametrize("writes", [1, 2])
def test_a_crash_after_any_write_ends_the_same(writes: int) -> None:
    world = World(gpu_node("a", 4), gpu_node("b", 2))
    for name in ("v", "w"):
        world.create(name, 2)
    for name in world.workloads:
        world.reconcile(name)
    world.placement.run_pass(0)
    for _ in range(writes):
        world.reconcile("v", crash=True)
        world.restart()
    world.turn()
    assert {name: world.status(name)["assignedNode"] for name in ("v", "w")} == {"v": "a", "w": "a"}
    assert sorted(world.jobs) == ["v-job", "w-job"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(1, 4)),
        st.tuples(st.just("turn"), st.sampled_from([1, 40, 130, 700])),
        st.tuples(st.just("end"), st.integers(0, 1)),
        st.tuples(st.just("lose"), st.integers(0, 2)),
        st.tuples(st.just("add"), st.integers(0, 2)),
        st.tuples(st.just("suspend"), st.integers(0, 7)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("crash"), st.integers(0, 7)),
        st.tuples(st.sampled_from(["job_controller_works", "scheduler_works"]), st.integers(0, 1)),
    ),
    max_size=25,
)
NAMES = ("a", "b", "c")


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_whatever_happens_no_node_is_promised_twice_and_everyone_ends(steps: list[tuple[str, int]]) -> None:
    world = World(*(gpu_node(name, 4) for name in NAMES))
    for what, number in steps:
        act(world, what, number)
        for name in world.nodes:
            assert promised(world, name) <= 4
    world.job_controller_works = world.scheduler_works = True
    for name in NAMES:
        act(world, "add", NAMES.index(name))
    for name in world.workloads:
        world.change(name, suspend=False)
    for _ in range(12):
        world.turn(310)
        for name in world.workloads:
            if (
                world.status(name).get("phase") == "Running"
                and not world.pods[world.status(name)["jobName"]].is_finished
            ):
                world.end(name)
    assert {world.status(name)["phase"] for name in world.workloads} <= {"Succeeded", "Failed"}


def promised(world: World, node_name: str) -> int:
    """The GPUs of everyone who has a try there that has not ended."""
    found = 0
    for it in world.workloads.values():
        status = it.status
        if status is not None and status.assigned_node == node_name and status.phase not in ("Succeeded", "Failed"):
            pod = world.pods.get(status.job_name or "")
            found += it.spec.gpu_count if pod is None or not pod.is_finished else 0
    return found


def act(world: World, what: str, number: int) -> None:
    names = sorted(world.workloads)
    match what:
        case "create":
            world.create(f"w-{len(names)}", number)
        case "turn":
            world.turn(number)
        case "end":
            running = [name for name in names if world.status(name).get("phase") == "Running"]
            pods = [name for name in running if not world.pods[world.status(name)["jobName"]].is_finished]
            if pods:
                world.end(pods[0], number)
        case "lose" if NAMES[number] in world.nodes:
            world.lose(NAMES[number])
        case "add" if NAMES[number] not in world.nodes:
            world.add(gpu_node(NAMES[number], 4))
        case "suspend" if names:
            name = names[number % len(names)]
            if world.status(name).get("phase") not in ("Succeeded", "Failed"):
                world.change(name, suspend=not world.workloads[name].spec.suspend)
        case "job_controller_works" | "scheduler_works":
            setattr(world, what, bool(number))
        case "restart":
            world.restart()
        case "crash" if names:
            world.placement.run_pass(world.seconds)
            world.reconcile(names[number % len(names)], crash=True)
            world.restart()
