"""A world of workloads: a cluster that does what it is told, and an operator that may forget all it has in memory.

The operator here is what a controller is: attend, decide, make, status. Nothing else decides.
"""

from datetime import datetime
from random import Random
from typing import Any

import msgspec
from msgspec import structs

from holdfast.api.core.objects import Job, Node, Pod, PodSpec
from holdfast.api.gpuworkload import GPUWorkload
from holdfast.gpuworkload.decision import AssignNode, RetryAttempt, RunJob, Suspend, decide, sync_placement
from holdfast.gpuworkload.job import pod_template, workload_job
from holdfast.gpuworkload.snapshot import TIMING, GPUWorkloadSnapshot, last_attempt, reservation_id
from holdfast.gpuworkload.status import next_status
from holdfast.scheduling.constraints import shape_of
from holdfast.scheduling.ledger import GPU, Ledger
from holdfast.scheduling.placement import Placement
from tests.gpuworkloads import pending
from tests.scheduling.nodes import node
from tests.trainingjob.objects.family import DEFAULTS
from tests.trainingjobs import at, stamp

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
        self.placement = Placement(
            self.ledger,
            Random(1),
            reservation_timeout_s=TIMING.reservation_timeout_s,
            starvation_timeout_s=TIMING.starvation_timeout_s,
        )
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

    def observe(self, name: str) -> GPUWorkloadSnapshot:
        it = self.workloads[name]
        current = it.status.job_name if it.status is not None else None
        jobs = {each: job for each, (owner, job, _) in self.jobs.items() if owner == name}
        pods = {each: pod for each, pod in self.pods.items() if each in jobs}
        return GPUWorkloadSnapshot(
            workload=it,
            job=jobs.get(current or ""),
            old_jobs=tuple(job for each, job in jobs.items() if each != current),
            pods=tuple(pod for each, pod in pods.items() if each == current),
            old_pods=tuple(pod for each, pod in pods.items() if each != current),
            nodes=self.nodes,
        )

    def attend(self, name: str) -> GPUWorkloadSnapshot:
        template = msgspec.convert(pod_template(self.workloads[name], DEFAULTS)["spec"], PodSpec)
        shape = shape_of(template, {}, "ml")
        return sync_placement(self.observe(name), self.placement, shape, self.now, self.seconds, TIMING)[0]

    def reconcile(self, name: str, *, crash: bool = False) -> None:
        """`crash`: the operator dies after its first write."""
        observed = self.attend(name)
        course = decide(observed, self.now, TIMING)
        while isinstance(course, AssignNode | RetryAttempt | Suspend):
            self.write(name, observed, course)
            if crash:
                return
            observed = self.attend(name)
            course = decide(observed, self.now, TIMING)
        if isinstance(course, RunJob) and observed.job is None:
            self.make_job(name)
            if crash:
                return
            observed = self.attend(name)
        for job in observed.jobs_to_delete:
            del self.jobs[job.metadata.name]
            self.set_pod(job.metadata.name, None)
        self.write(name, observed, course)

    def write(self, name: str, observed: GPUWorkloadSnapshot, course: Any) -> None:
        status = next_status(observed, course, self.now)
        if status != observed.workload.status:
            self.workloads[name] = structs.replace(self.workloads[name], status=status)
            self.writes += 1
            if status.phase is not None and [status.phase] != self.phases[name][-1:]:
                self.phases[name].append(status.phase)

    def make_job(self, name: str) -> None:
        it = self.workloads[name]
        body = workload_job(it, DEFAULTS, reservation_id(it, last_attempt(it)))
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
        held = (pod for pod in self.pods.values() if pod.spec.node_name == node_name and not pod.is_finished)
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
        self.placement.run_pass(self.seconds)
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
