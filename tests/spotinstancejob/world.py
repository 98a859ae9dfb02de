"""A job in virtual time: a cluster and a cloud that do what they are told, and an operator that may die at any write.

The operator here is what the controller is: observe, plan, look, decide, status, apply. Nothing else decides.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import structs

from holdfast.api.checkpointbackup import TERMINAL_PHASES, CheckpointBackup
from holdfast.api.core.objects import Job, Node, Pod
from holdfast.api.provisionedinstance import INSTANCE_LABEL, ProvisionedInstance, machine_name
from holdfast.api.spotinstancejob import REPLICA_LABEL, SpotInstanceJob
from holdfast.api.spotinstancejob_status import ReplicaStatus, SpotInstanceJobStatus
from holdfast.api.spotinstancevm import SpotInstanceVM
from holdfast.decisions import CleanUp, Finish
from holdfast.scheduling.machine_pools import MachinePools, Resting, ZoneChoice, ZoneRefusal, machine_request
from holdfast.spotinstancejob.apply import checkpoint_to_restore, machine_object
from holdfast.spotinstancejob.decide.actions import (
    Action,
    DeleteBackup,
    DeleteImagePod,
    Follow,
    GiveBack,
    OrderMachine,
    Record,
    SaveReplica,
    StartReplica,
    StopJob,
)
from holdfast.spotinstancejob.decide.decision import ahead, decide, plan
from holdfast.spotinstancejob.decide.needs import unmade_machines, waiting_for_node
from holdfast.spotinstancejob.decide.recovery import goes_back, wants_repository
from holdfast.spotinstancejob.images import CheckpointImages, checkpoint_backup, checkpoint_of
from holdfast.spotinstancejob.names import ATTEMPT_LABEL
from holdfast.spotinstancejob.replica_job import ReplicaAttempt, replica_job
from holdfast.spotinstancejob.snapshot import (
    PREPARING,
    TIMING,
    RepositoryView,
    SpotInstanceJobSnapshot,
    status_of,
)
from holdfast.spotinstancejob.status import next_status
from tests.spotinstancejob.jobs import spot_job
from tests.spotinstancejob.machines import condition, template
from tests.trainingjob.objects.family import DEFAULTS
from tests.trainingjobs import at, stamp

JSON = dict[str, Any]


class Crashed(Exception):
    """The operator died after its last write."""


class SpotWorld:
    def __init__(self, *nodes: Node, job: SpotInstanceJob | None = None, vm: SpotInstanceVM | None = None) -> None:
        self.seconds = 0.0
        self.job = job or spot_job()
        self.template: SpotInstanceVM | None = vm or template()
        self.nodes = {each.metadata.name: each for each in nodes}
        self.jobs: dict[str, Job] = {}
        self.bodies: dict[str, JSON] = {}
        """The Jobs as they were written."""
        self.pods: dict[str, Pod] = {}
        self.machines: dict[str, ProvisionedInstance] = {}
        self.backups: dict[str, CheckpointBackup] = {}
        self.pools = MachinePools(lambda: 0.0)
        self.registry: dict[int, CheckpointImages] = {}
        self.registry_is_down = False
        self.cloud_is_down = False
        self.taken: set[str] = set()
        """Nodes that others use."""
        self.power: set[str] = set()
        """Nodes that run, whatever the API server knows of them."""
        self.ghosts: list[tuple[str, str, str]] = []
        """Replica, attempt and node of containers that run on although their Node and their pod were deleted."""
        self.writes = 0
        self.dies_at: int | None = None
        self.made: list[str] = []
        self.messages: list[str] = []
        for node in self.nodes:
            self.power.add(node)

    # The operator.

    @property
    def now(self) -> datetime:
        return at(self.seconds)

    @property
    def status(self) -> SpotInstanceJobStatus:
        return status_of(self.job)

    def replica(self, number: int) -> ReplicaStatus:
        return next(each for each in self.status.job_statuses if each.replica == number)

    def observe(self) -> SpotInstanceJobSnapshot:
        observed = SpotInstanceJobSnapshot(
            job=self.job,
            jobs=dict(self.jobs),
            pods=tuple(self.pods.values()),
            nodes=dict(self.nodes),
            machines=dict(self.machines),
            backups=dict(self.backups),
            template=self.template,
            described={each.images[0].with_digest: each for each in self.registry.values()},
        )
        planned = plan(observed, self.now, TIMING)
        free: dict[int, str] = {}
        zones: dict[int, ZoneChoice | Resting] = {}
        occupied = {each.node_name for each in planned.job_statuses} | self.taken
        for replica in waiting_for_node(planned):
            found = next((each for each in self._free_nodes() if each not in occupied), None)
            if found is not None:
                free[replica.replica] = found
                occupied.add(found)
            else:
                self._choose_zone(zones, replica)
        for replica in unmade_machines(observed, planned):
            self._choose_zone(zones, replica)
        room = {
            each.replica: "its nvidia.com/gpu was taken by pod ml/other"
            for each in planned.job_statuses
            if each.machine in self.machines and self._node_of(each.machine) in self.taken and each.phase in PREPARING
        }
        view = None
        if wants_repository(planned) is not None:
            newest_first = sorted(self.registry.values(), key=lambda each: each.order, reverse=True)
            problem = "the registry does not answer" if self.registry_is_down else ""
            view = RepositoryView(
                asked_at=self.now, checkpoints=() if problem else tuple(newest_first), problem=problem
            )
        return structs.replace(
            observed, planned=planned, free_nodes=free, zones=zones, capacity_taken_by=room, repository=view
        )

    def reconcile(self) -> None:
        """Raises `Crashed` when the operator is to die at one of the writes."""
        observed = self.observe()
        for action in decide(observed, self.now, TIMING):
            self._apply(action, observed)
            status = next_status(observed, action, self.now)
            if status != self.status:
                self._write()
                self.job = structs.replace(self.job, status=status)
                self.messages.append(status.message or "")
                self._after_write()
            observed = structs.replace(observed, job=self.job)

    def settle(self) -> None:
        """Until nothing changes any more without time passing."""
        for _ in range(50):
            before = self._state()
            self._reconcile_anew()
            self.play()
            if self._state() == before:
                return
        raise AssertionError("it never settles")

    def _reconcile_anew(self) -> None:
        """An operator that died is followed by another one."""
        try:
            self.reconcile()
        except Crashed:
            self.dies_at = None
            self.reconcile()
        self.must_be_true()

    def advance(self, seconds: float) -> None:
        """Let time pass: the operator comes back at each moment that it has asked for."""
        end = self.seconds + seconds
        while self.seconds < end:
            self.settle()
            moments = [(each - at(0)).total_seconds() for each in ahead(self.observe(), self.now, TIMING)]
            self.seconds = min([end, *(each for each in moments if each > self.seconds)])
        self.settle()

    def must_be_true(self) -> None:
        """What no order of events may change: one live attempt of a replica, and one machine for a need."""
        live: dict[str, set[str]] = {}
        for pod in self.pods.values():
            if not pod.is_finished and (not pod.spec.node_name or pod.spec.node_name in self.power):
                replica = pod.metadata.labels[REPLICA_LABEL]
                live.setdefault(replica, set()).add(pod.metadata.labels[ATTEMPT_LABEL])
        for replica, attempt, node in self.ghosts:
            if node in self.power:
                live.setdefault(replica, set()).add(attempt)
        assert all(len(attempts) <= 1 for attempts in live.values()), live
        needs: dict[tuple[str, str], list[str]] = {}
        for name, machine in self.machines.items():
            if not self._is_gone(machine):
                labels = machine.metadata.labels
                need = labels[REPLICA_LABEL], labels[ATTEMPT_LABEL]
                needs.setdefault(need, []).append(name)
        assert all(len(machines) <= 1 for machines in needs.values()), needs
        nodes = [each.node_name for each in self.status.job_statuses if each.node_name]
        assert len(nodes) == len(set(nodes)), nodes

    def _state(self) -> tuple[Any, ...]:
        return self.job, dict(self.jobs), dict(self.pods), dict(self.machines), dict(self.backups)

    def _write(self) -> None:
        self.writes += 1

    def _after_write(self) -> None:
        if self.dies_at is not None and self.writes >= self.dies_at:
            raise Crashed

    def _apply(self, action: Action, observed: SpotInstanceJobSnapshot) -> None:
        match action:
            case Record() | Follow() | Finish() | CleanUp() | DeleteImagePod():
                return
            case SaveReplica(wanted, pod, timeout_s):
                body = checkpoint_backup(
                    self.job,
                    replica=wanted.replica,
                    number=wanted.number,
                    pod=pod,
                    mode=self.status.checkpoint_mode or "application",
                    now=self.now,
                    timeout_s=timeout_s,
                )
                self.backups[body["metadata"]["name"]] = self._object(body, CheckpointBackup)
            case OrderMachine(replica, zone):
                body = machine_object(observed, replica, zone)
                assert body["metadata"]["name"] not in self.machines
                self.machines[body["metadata"]["name"]] = self._object(body, ProvisionedInstance)
                self.made.append(body["metadata"]["name"])
            case StartReplica(replica):
                if replica.restored_from and checkpoint_to_restore(observed, replica) is None:
                    return
                self._make_job(observed, replica)
            case StopJob(job):
                stopping = structs.replace(job.metadata, deletion_timestamp=stamp(self.seconds))
                self.jobs[job.metadata.name] = structs.replace(job, metadata=stopping)
            case GiveBack(machine):
                doomed = structs.replace(machine.metadata, deletion_timestamp=stamp(self.seconds))
                self.machines[machine.metadata.name] = structs.replace(machine, metadata=doomed)
            case DeleteBackup(backup):
                self.backups.pop(backup.metadata.name, None)
        self._write()
        self._after_write()

    def _make_job(self, observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> None:
        attempt = ReplicaAttempt(
            replica=replica.replica,
            attempt=replica.attempt,
            mode=self.status.checkpoint_mode or "application",
            node=replica.node_name or "",
            checkpoint=checkpoint_to_restore(observed, replica),
            is_exact=goes_back(observed.status),
        )
        body = replica_job(self.job, attempt, DEFAULTS)
        assert body["metadata"]["name"] not in self.jobs
        self.jobs[body["metadata"]["name"]] = self._object(body, Job)
        self.bodies[body["metadata"]["name"]] = body
        self.made.append(body["metadata"]["name"])

    def _object(self, body: JSON, model: type[Any]) -> Any:
        metadata = {**body["metadata"], "uid": f"uid-{self.writes}-{body['metadata']['name']}"}
        return msgspec.convert({**body, "metadata": {**metadata, "creationTimestamp": stamp(self.seconds)}}, model)

    def _free_nodes(self) -> Iterable[str]:
        """Machines are for the replicas that they were ordered for."""
        for name, node in sorted(self.nodes.items()):
            if node.is_ready and not node.spec.taints and INSTANCE_LABEL not in node.metadata.labels:
                yield name

    def _choose_zone(self, zones: dict[int, ZoneChoice | Resting], replica: ReplicaStatus) -> None:
        if self.template is not None:
            request = machine_request(self.template, spot=True)
            zones[replica.replica] = self.pools.choose(request, self.now, by=f"r{replica.replica}")

    # The cluster and the cloud.

    def play(self) -> None:
        """Everything that happens at once: the Job controller, the scheduler, kubelets, the garbage collector."""
        for name, job in list(self.jobs.items()):
            if job.metadata.deletion_timestamp:
                self._stop_pods(name)
            elif name not in self.pods and not job.status.start_time:
                self._make_pod(name, job)
        for name, machine in list(self.machines.items()):
            if machine.metadata.deletion_timestamp and not self.cloud_is_down:
                self._take_away(name)
                del self.machines[name]

    def _make_pod(self, name: str, job: Job) -> None:
        body = self.bodies[name]["spec"]["template"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job.metadata.uid, "controller": True}
        metadata = {
            **body["metadata"],
            "name": f"{name}-pod",
            "namespace": "ml",
            "uid": f"uid-pod-{job.metadata.uid}",
            "ownerReferences": [owner],
            "creationTimestamp": stamp(self.seconds),
        }
        affinity = body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (node,) = affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"]
        is_there = node in self.power and node in self.nodes and self.nodes[node].is_ready
        status = {"phase": "Running", "startTime": stamp(self.seconds)} if is_there else {"phase": "Pending"}
        spec = {**body["spec"], "nodeName": node if is_there else ""}
        self.pods[name] = msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Pod)
        self.jobs[name] = structs.replace(job, status=structs.replace(job.status, start_time=stamp(self.seconds)))

    def _stop_pods(self, name: str) -> None:
        """A Job is gone only when its pod is, which takes a moment; on a node that nobody hears of, until that goes."""
        pod = self.pods.get(name)
        if pod is not None and not pod.is_finished:
            node = self.nodes.get(pod.spec.node_name)
            if not pod.is_terminating:
                doomed = structs.replace(pod.metadata, deletion_timestamp=stamp(self.seconds))
                self.pods[name] = structs.replace(pod, metadata=doomed)
                return
            if node is not None and not node.is_ready:
                return
        self.pods.pop(name, None)
        del self.jobs[name]

    def _take_away(self, machine: str) -> None:
        node = machine_name(self.machines[machine].metadata.uid)
        self.power.discard(node)
        if self.nodes.pop(node, None) is not None:
            for name, pod in list(self.pods.items()):
                if pod.spec.node_name == node and not pod.is_finished:
                    self.lose_pod(name)

    def lose_pod(self, name: str) -> None:
        """Its node is gone: the pod is deleted by force, and its Job has failed."""
        del self.pods[name]
        if not self.jobs[name].metadata.deletion_timestamp:
            self._hold(name, "Failed")

    def _hold(self, name: str, kind: str) -> None:
        job = self.jobs[name]
        status = msgspec.convert(
            {**msgspec.to_builtins(job.status), "conditions": [{"type": kind, "status": "True"}]}, type(job.status)
        )
        self.jobs[name] = structs.replace(job, status=status)

    # What a test makes happen.

    def end_pod(self, name: str, exit_code: int = 0, *, reason: str = "", after_s: float = 0.0) -> None:
        pod = self.pods[name]
        end = {"exitCode": exit_code, "reason": reason, "finishedAt": stamp(self.seconds + after_s)}
        phase = {"phase": "Failed" if exit_code else "Succeeded"}
        status = {
            **msgspec.to_builtins(pod.status),
            **phase,
            "containerStatuses": [{"name": "training", "state": {"terminated": end}}],
        }
        self.pods[name] = structs.replace(pod, status=msgspec.convert(status, type(pod.status)))
        self._hold(name, "Failed" if exit_code else "Complete")

    def bring_up(self, machine: str) -> str:
        """The machine is a Node that is ready; its name."""
        it = self.machines[machine]
        node = machine_name(it.metadata.uid)
        self.power.add(node)
        self.nodes[node] = machine_node(node, it.metadata.uid)
        self.set_machine(
            machine,
            phase="Serve",
            state="RUNNING",
            nodeName=node,
            conditions=[condition(kind, "True", "Ready") for kind in ("Launched", "Joined", "GPUReady")],
        )
        request = machine_request(self.template or template(), spot=True)
        self.pools.launched(request, it.spec.zone or "")
        return node

    def bring_up_all(self) -> None:
        for name, machine in list(self.machines.items()):
            if machine.status is None:
                self.bring_up(name)

    def refuse(self, machine: str, reason: str = "Stockout") -> None:
        """The cloud makes none."""
        it = self.machines[machine]
        request = machine_request(self.template or template(), spot=True)
        refusal = ZoneRefusal(scope="zone", reason=reason, said="no capacity")
        self.pools.refused(request, it.spec.zone or "", refusal, self.now, by="")
        self.set_machine(
            machine, phase="End", step="Gone", conditions=[condition("Launched", "False", reason, "no capacity")]
        )

    def fail_join(self, machine: str, *, gone: bool) -> None:
        """It is given back, which takes a while."""
        said = condition("Joined", "False", "Login", "nobody answers on port 22")
        launched = condition("Launched", "True", "Accepted")
        if gone:
            self._take_away(machine)
        self.set_machine(machine, phase="End", step="Gone" if gone else "Deleting", conditions=[launched, said])

    def notice(self, machine: str) -> None:
        """The cloud says that it takes the machine back: it runs for a while yet."""
        it = self.machines[machine]
        old = [each for each in (it.status.conditions if it.status else ()) if each.type != "Preempted"]
        held = [*msgspec.to_builtins(old), condition("Preempted", "True", "PreemptionNotice", "taken back")]
        self.set_machine(machine, conditions=held, preemptionNotice=stamp(self.seconds))

    def preempt(self, machine: str) -> None:
        """It is gone, and so is its Node."""
        self.notice(machine)
        self._take_away(machine)
        self.set_machine(machine, phase="End", step="Gone", state="TERMINATED")

    def delete_machine(self, machine: str) -> None:
        """By hand: its object goes when the machine is gone."""
        it = self.machines[machine]
        doomed = structs.replace(it.metadata, deletion_timestamp=stamp(self.seconds))
        self.machines[machine] = structs.replace(it, metadata=doomed)

    def delete_node(self, machine: str) -> None:
        """By hand: the machine runs on until it is given back, and so do the containers there."""
        node = self._node_of(machine)
        self.nodes.pop(node, None)
        for name, pod in list(self.pods.items()):
            if pod.spec.node_name == node and not pod.is_finished:
                labels = pod.metadata.labels
                self.ghosts.append((labels[REPLICA_LABEL], labels[ATTEMPT_LABEL], node))
                self.lose_pod(name)
        said = condition("Joined", "False", "NodeDeleted", "its Node was deleted")
        self.set_machine(machine, phase="End", step="Deleting", conditions=[said])

    def silence(self, node: str, *, off: bool = True) -> None:
        """The node is heard of no more, for it is off, or for the network is."""
        if off:
            self.power.discard(node)
        it = self.nodes[node]
        conditions = [{"type": "Ready", "status": "Unknown", "lastTransitionTime": stamp(self.seconds)}]
        status = msgspec.convert({**msgspec.to_builtins(it.status), "conditions": conditions}, type(it.status))
        self.nodes[node] = structs.replace(it, status=status)

    def set_machine(self, machine: str, **status: Any) -> None:
        it = self.machines[machine]
        old = msgspec.to_builtins(it.status) if it.status is not None else {}
        body = {**msgspec.to_builtins(it), "status": {**old, **status}}
        self.machines[machine] = msgspec.convert(body, ProvisionedInstance)

    def change(self, **spec: Any) -> None:
        self.job = structs.replace(self.job, spec=structs.replace(self.job.spec, **spec))

    def open_backups(self) -> list[str]:
        return [
            name
            for name, each in self.backups.items()
            if each.status is None or each.status.phase not in TERMINAL_PHASES
        ]

    def push(self, backup: str, *, took_s: float = 10.0) -> str:
        """The checkpoint is saved and pushed; its image as status names it."""
        it = self.backups[backup]
        images = [
            {
                "containerName": each.name,
                "imageName": each.image,
                "digest": f"sha256:{abs(hash(each.image)) % 16**16:064x}",
            }
            for each in it.spec.containers
        ]
        self._set_backup(
            backup,
            run=1,
            phase="Completed",
            mode=it.spec.mode,
            startTime=stamp(self.seconds),
            lastCheckpointTime=stamp(self.seconds),
            completionTime=stamp(self.seconds + took_s),
            frozenSeconds=took_s,
            builtImages=images,
        )
        checkpoint = checkpoint_of(self.job, self.backups[backup])
        assert checkpoint is not None
        self.registry[checkpoint.number] = checkpoint
        return checkpoint.images[0].with_digest

    def fail_backup(self, backup: str, reason: str = "PushFailed") -> None:
        failed = condition("Failed", "True", reason, "the registry is away")
        self._set_backup(backup, run=1, phase="Failed", message="the registry is away", conditions=[failed])

    def _set_backup(self, name: str, **status: Any) -> None:
        it = self.backups[name]
        self.backups[name] = msgspec.convert({**msgspec.to_builtins(it), "status": status}, CheckpointBackup)

    def _node_of(self, machine: str | None) -> str:
        return machine_name(self.machines[machine].metadata.uid) if machine in self.machines else ""

    def _is_gone(self, machine: ProvisionedInstance) -> bool:
        return machine.status is not None and machine.status.phase == "End" and machine.status.step == "Gone"


def machine_node(name: str, uid: str) -> Node:
    labels = {"holdfast.dev/spot": "true", "holdfast.dev/instance": uid}
    body = {
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"nvidia.com/gpu": 1}, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    return msgspec.convert(body, Node)
