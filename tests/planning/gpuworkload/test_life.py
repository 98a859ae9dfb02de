"""Whole lives: workloads, a cluster that does what it is told, and an operator that may forget all it has in memory.

The operator here is what a controller is: attend, decide, make, status. Nothing else decides.
"""

from datetime import datetime
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.builtin import Job, Node, Pod
from holdfast.api.gpuworkload import GPUWorkload
from holdfast.api.placing import PodSpec
from holdfast.planning.admission import shape_of
from holdfast.planning.gpuworkload.attending import attend
from holdfast.planning.gpuworkload.course import Again, Go, Place, Stop, decide
from holdfast.planning.gpuworkload.observed import Observed
from holdfast.planning.gpuworkload.status import next_status
from holdfast.planning.gpuworkload.timing import TIMING
from holdfast.planning.gpuworkload.tries import last_try, place
from holdfast.planning.ledger import GPU, Ledger
from holdfast.planning.placement import Placement
from holdfast.workloads.gpuworkload.job import workload_job
from holdfast.workloads.gpuworkload.pod import pod_template
from tests.gpuworkloads import pending
from tests.planning.machines import node
from tests.trainingjobs import at, stamp
from tests.workloads.family import DEFAULTS

JSON = dict[str, Any]
UNSCHEDULABLE = pending("Insufficient nvidia.com/gpu").status


class World:
    """The API server with its scheduler, and beside it the operator's memory."""

    def __init__(self, *nodes: Node) -> None:
        self.seconds = 0.0
        self.workloads: dict[str, GPUWorkload] = {}
        self.jobs: dict[str, tuple[str, Job, JSON]] = {}
        """By name: whose it is, as it is read, as it was written."""
        self.pods: dict[str, Pod] = {}
        self.nodes = {each.metadata.name: each for each in nodes}
        self.phases: dict[str, list[str]] = {}
        self.made: list[str] = []
        """Names of Jobs."""
        self.writes = 0
        self.job_controller_works = True
        self.scheduler_works = True
        self.restart()

    @property
    def now(self) -> datetime:
        return at(self.seconds)

    def restart(self) -> None:
        """A new operator: it reads everything, and only then looks."""
        self.ledger = Ledger()
        self.placement = Placement(self.ledger, Random(1), assumed_s=TIMING.assumed_s, patience_s=TIMING.patience_s)
        for each in self.nodes.values():
            self.ledger.node_changed(None, each)
        for each_pod in self.pods.values():
            self.ledger.pod_changed(None, each_pod)
        for name in self.workloads:
            self.attend(name)

    def create(self, name: str, gpus: int = 1, **spec: Any) -> None:
        body = {
            "metadata": {
                "name": name,
                "namespace": "ml",
                "uid": f"uid-{name}",
                "creationTimestamp": stamp(self.seconds),
            },
            "spec": {"modelName": "m", "gpuCount": gpus, **spec},
        }
        self.workloads[name] = msgspec.convert(body, GPUWorkload)
        self.phases[name] = []

    def change(self, name: str, **spec: Any) -> None:
        it = self.workloads[name]
        self.workloads[name] = structs.replace(it, spec=structs.replace(it.spec, **spec))

    def observe(self, name: str) -> Observed:
        it = self.workloads[name]
        current = it.status.job_name if it.status is not None else None
        jobs = {each: job for each, (owner, job, _) in self.jobs.items() if owner == name}
        pods = {each: pod for each, pod in self.pods.items() if each in jobs}
        return Observed(
            workload=it,
            job=jobs.get(current or ""),
            earlier=tuple(job for each, job in jobs.items() if each != current),
            pods=tuple(pod for each, pod in pods.items() if each == current),
            other_pods=tuple(pod for each, pod in pods.items() if each != current),
            nodes=self.nodes,
        )

    def attend(self, name: str) -> Observed:
        template = msgspec.convert(pod_template(self.workloads[name], DEFAULTS)["spec"], PodSpec)
        shape = shape_of(template, {}, "ml")
        return attend(self.observe(name), self.placement, shape, self.now, self.seconds, TIMING)[0]

    def reconcile(self, name: str, *, crash: bool = False) -> None:
        """`crash`: the operator dies after its first write."""
        observed = self.attend(name)
        course = decide(observed, self.now, TIMING)
        while isinstance(course, Place | Again | Stop):
            self.write(name, observed, course)
            if crash:
                return
            observed = self.attend(name)
            course = decide(observed, self.now, TIMING)
        if isinstance(course, Go) and observed.job is None:
            self.make_job(name)
            if crash:
                return
            observed = self.attend(name)
        for job in observed.superfluous:
            del self.jobs[job.metadata.name]
            self.set_pod(job.metadata.name, None)
        self.write(name, observed, course)

    def write(self, name: str, observed: Observed, course: Any) -> None:
        status = next_status(observed, course, self.now)
        if status != observed.workload.status:
            self.workloads[name] = structs.replace(self.workloads[name], status=status)
            self.writes += 1
            if status.phase is not None and [status.phase] != self.phases[name][-1:]:
                self.phases[name].append(status.phase)

    def make_job(self, name: str) -> None:
        it = self.workloads[name]
        body = workload_job(it, DEFAULTS, place(it, last_try(it)))
        job = body["metadata"]["name"]
        assert job not in self.jobs
        known = {"name": job, "namespace": "ml", "uid": f"uid-{job}"}
        self.jobs[job] = (name, msgspec.convert({"metadata": known}, Job), body)
        self.made.append(job)
        self.make_pods()

    def make_pods(self) -> None:
        """As the Job controller does."""
        for job, (owner, read, body) in list(self.jobs.items()):
            if read.status.start_time or not self.job_controller_works:
                continue
            started = structs.replace(read.status, start_time=stamp(self.seconds))
            self.jobs[job] = (owner, structs.replace(read, status=started), body)
            template = body["spec"]["template"]
            metadata = {"name": f"{job}-pod", "namespace": "ml", **template["metadata"]}
            self.set_pod(job, msgspec.convert({"metadata": metadata, "spec": template["spec"]}, Pod))

    def set_pod(self, job: str, new: Pod | None) -> None:
        self.ledger.pod_changed(self.pods.get(job), new)
        self.pods.pop(job, None)
        if new is not None:
            self.pods[job] = new

    def schedule(self) -> None:
        """As the scheduler does: a pod gets the node that it is pinned to, if there is room by its own count."""
        for job, pod in list(self.pods.items()):
            if pod.spec.node_name or not self.scheduler_works:
                continue
            affinity = self.jobs[job][2]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
            (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            (wanted,) = term["matchFields"][0]["values"]
            if wanted in self.nodes and self.used(wanted) + asked(pod) <= offered(self.nodes[wanted]):
                bound = structs.replace(pod, spec=structs.replace(pod.spec, node_name=wanted))
                self.set_pod(job, structs.replace(bound, status=structs.replace(bound.status, phase="Running")))
            else:
                self.set_pod(job, structs.replace(pod, status=UNSCHEDULABLE))

    def used(self, node_name: str) -> int:
        held = (pod for pod in self.pods.values() if pod.spec.node_name == node_name and not pod.has_ended)
        return sum(map(asked, held))

    def end(self, name: str, exit_code: int = 0) -> None:
        job = self.status(name)["jobName"]
        pod, (owner, read, body) = self.pods[job], self.jobs[job]
        end = {"name": "workload", "state": {"terminated": {"exitCode": exit_code, "finishedAt": stamp(self.seconds)}}}
        phase = {"phase": "Failed" if exit_code else "Succeeded", "containerStatuses": [end]}
        self.set_pod(job, structs.replace(pod, status=msgspec.convert(phase, type(pod.status))))
        held = {"type": "Failed" if exit_code else "Complete", "status": "True"}
        status = {**msgspec.to_builtins(read.status), "conditions": [held]}
        self.jobs[job] = (owner, structs.replace(read, status=msgspec.convert(status, type(read.status))), body)

    def lose(self, node_name: str) -> None:
        self.ledger.node_changed(self.nodes.pop(node_name), None)

    def add(self, new: Node) -> None:
        self.ledger.node_changed(self.nodes.get(new.metadata.name), new)
        self.nodes[new.metadata.name] = new

    def turn(self, seconds: float = 1) -> None:
        """Some time later everything has had its turn."""
        self.seconds += seconds
        for name in self.workloads:
            self.reconcile(name)
        self.placement.look(self.seconds)
        for name in self.workloads:
            self.reconcile(name)
        self.make_pods()
        self.schedule()
        for name in self.workloads:
            self.reconcile(name)

    def status(self, name: str) -> JSON:
        status = self.workloads[name].status
        return msgspec.to_builtins(status) if status is not None else {}


def asked(pod: Pod) -> int:
    return int(pod.spec.containers[0].resources.limits[GPU])


def offered(it: Node) -> int:
    return int(it.status.allocatable[GPU])


def gpu_node(name: str, gpus: int = 8) -> Node:
    return node(name, gpus=gpus, room={"cpu": "96", "memory": "512Gi"})


def test_a_workload_goes_through_its_phases_and_ends() -> None:
    world = World(gpu_node("a"))
    world.create("w", 2)
    world.turn()
    world.end("w")
    world.turn()
    assert world.phases["w"] == ["Scheduling", "Scheduled", "Running", "Succeeded"]
    status = world.status("w")
    assert (status["assignedNode"], status["jobName"], status.get("retryCount", 0)) == ("a", "w-job", 0)
    assert dict(world.ledger.assumptions) == {}


def test_a_settled_world_writes_nothing() -> None:
    world = World(gpu_node("a", 2))
    for number in range(3):
        world.create(f"w-{number}", 2)
    world.turn()
    writes = world.writes
    for _ in range(5):
        world.turn()
    assert world.writes == writes


def test_those_who_wait_say_so_and_start_with_the_next_look() -> None:
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


def test_who_is_turned_away_everywhere_comes_back_ever_more_slowly_and_holds_no_node_meanwhile() -> None:
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


def test_suspending_gives_the_gpus_to_who_waits_and_going_on_waits_in_turn() -> None:
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
    world.placement.look(0)
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
            if world.status(name).get("phase") == "Running" and not world.pods[world.status(name)["jobName"]].has_ended:
                world.end(name)
    assert {world.status(name)["phase"] for name in world.workloads} <= {"Succeeded", "Failed"}


def promised(world: World, node_name: str) -> int:
    """The GPUs of everyone who has a try there that has not ended."""
    found = 0
    for it in world.workloads.values():
        status = it.status
        if status is not None and status.assigned_node == node_name and status.phase not in ("Succeeded", "Failed"):
            pod = world.pods.get(status.job_name or "")
            found += it.spec.gpu_count if pod is None or not pod.has_ended else 0
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
            pods = [name for name in running if not world.pods[world.status(name)["jobName"]].has_ended]
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
            world.placement.look(world.seconds)
            world.reconcile(names[number % len(names)], crash=True)
            world.restart()
