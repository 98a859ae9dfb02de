"""Looks for what the attempts of a plan need: free nodes, zones for machines, and what the registry says."""

from collections.abc import Iterable
from datetime import datetime

from msgspec import structs

from holdfast.api.core.objects import Pod
from holdfast.api.machine_ends import status_of as machine_status
from holdfast.api.meta import Key
from holdfast.api.spotinstancejob import REPLICA_LABEL
from holdfast.api.spotinstancejob_status import ReplicaStatus, SpotInstanceJobStatus
from holdfast.scheduling.constraints import gpus_in
from holdfast.scheduling.ledger import GPU
from holdfast.scheduling.machine_pools import MachinePools, Resting, ZoneChoice, machine_request
from holdfast.scheduling.messages import number_text, quantity_text
from holdfast.scheduling.resources import NANO, pod_requests
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.decide.needs import unmade_machines, waiting_for_node
from holdfast.spotinstancejob.decide.recovery import known_checkpoints, wants_repository
from holdfast.spotinstancejob.images import CheckpointImages
from holdfast.spotinstancejob.lookups import RepositoryLookups
from holdfast.spotinstancejob.observe import SpotInstanceJobCaches
from holdfast.spotinstancejob.placement import ReplicaPlacement
from holdfast.spotinstancejob.snapshot import PREPARING, RepositoryView, SpotInstanceJobSnapshot, is_ready

# So many pods are named that took the room of a machine.
MOST_NAMED = 3


def images_to_restore(observed: SpotInstanceJobSnapshot) -> set[str]:
    """In container mode those of attempts that have no Job yet."""
    if observed.status.checkpoint_mode != "container":
        return set()
    replicas = (each for each in observed.status.job_statuses if each.phase in (*PREPARING, "Starting"))
    return {each.restored_from for each in replicas if each.restored_from and each.name not in observed.jobs}


class Supply:
    def __init__(
        self,
        caches: SpotInstanceJobCaches,
        placement: ReplicaPlacement,
        pools: MachinePools,
        lookups: RepositoryLookups,
    ) -> None:
        self._caches = caches
        self._placement = placement
        self._pools = pools
        self._lookups = lookups

    def search(
        self, observed: SpotInstanceJobSnapshot, planned: SpotInstanceJobStatus, now: datetime
    ) -> SpotInstanceJobSnapshot:
        """The observation with what was found for the plan."""
        observed = structs.replace(observed, unfit_template=self._unfit_template(observed))
        free, zones = self._nodes_and_zones(observed, planned, now)
        since = wants_repository(planned)
        view = self._lookups.view(observed.job, since, known_checkpoints(observed)) if since is not None else None
        return structs.replace(
            observed,
            free_nodes=free,
            zones=zones,
            capacity_taken_by={
                each.replica: taken
                for each in planned.job_statuses
                if each.phase in PREPARING and (taken := self._taken_capacity(observed, each))
            },
            repository=view or observed.repository,
        )

    def describe(self, observed: SpotInstanceJobSnapshot) -> SpotInstanceJobSnapshot:
        """The observation with what the registry has said about the images that attempts are to go on from.

        Only containers are made from images: a sidecar finds out for itself what an image holds.
        """
        described: dict[str, CheckpointImages] = {}
        missing: set[str] = set()
        undescribed: set[str] = set()
        problem: RepositoryView | None = None
        for image in images_to_restore(observed):
            found = self._lookups.described(observed.job, image, known_checkpoints(observed))
            match found:
                case CheckpointImages():
                    described[image] = found
                case RepositoryView() if not found.problem:
                    missing.add(image)
                case _:
                    undescribed.add(image)
                    problem = found or problem
        return structs.replace(
            observed,
            described=described,
            missing_images=frozenset(missing),
            undescribed=frozenset(undescribed),
            repository=problem,
        )

    def _nodes_and_zones(
        self, observed: SpotInstanceJobSnapshot, planned: SpotInstanceJobStatus, now: datetime
    ) -> tuple[dict[int, str], dict[int, ZoneChoice | Resting]]:
        """GPUs that are free go first; a zone is asked for only what is missing."""
        free: dict[int, str] = {}
        zones: dict[int, ZoneChoice | Resting] = {}
        occupied = {each.node_name for each in planned.job_statuses if each.node_name}
        occupied |= {name for name in observed.nodes if observed.is_announced(name)}
        meta, waits = observed.job.metadata, False
        for replica in waiting_for_node(planned):
            restores = planned.checkpoint_mode == "container" and planned.checkpoint_number > 0
            node = self._placement.find(observed.job, replica, occupied, restores=restores)
            if node:
                free[replica.replica] = node
                occupied.add(node)
                continue
            machine = names.machine_object_name(meta.name, replica.replica, replica.attempt, replica.machine_try)
            zone = self._zone(observed, machine, now)
            waits = waits or not isinstance(zone, ZoneChoice)
            zones |= {replica.replica: zone} if zone is not None else {}
        for replica in unmade_machines(observed, planned):
            zone = self._zone(observed, replica.machine or "", now)
            zones |= {replica.replica: zone} if zone is not None else {}
        if not waits:
            self._placement.settled(meta.key)
        return free, zones

    def _zone(self, observed: SpotInstanceJobSnapshot, machine: str, now: datetime) -> ZoneChoice | Resting | None:
        """Where the machine of that name may be ordered; None where it would be of no use, or nobody knows its like."""
        template = observed.template
        if template is None or observed.unfit_template:
            return None
        by = Key(observed.job.metadata.namespace, machine)
        return self._pools.choose(machine_request(template, spot=template.spec.preemptible), now, by=str(by))

    def _unfit_template(self, observed: SpotInstanceJobSnapshot) -> str:
        """Why no replica can run on a machine of the template, as far as that is known before there is one."""
        template = observed.template
        if template is None:
            return ""
        asked = gpus_in(self._placement.shape(observed.job).requests)
        offered = template.spec.gpu.count if template.spec.gpu is not None else 0
        return too_few_gpus(template.metadata.name, asked, offered) if asked > offered else ""

    def _taken_capacity(self, observed: SpotInstanceJobSnapshot, replica: ReplicaStatus) -> str:
        """Why the replica's machine, which is ready, has no room for it; "" when it has, or is not ready."""
        machine = observed.machine_of(replica)
        node = machine_status(machine).node_name if machine is not None and is_ready(machine) else None
        if node is None:
            return ""
        # One that could not be restored waits there for ever: it is stopped once the next attempt has its node.
        own = [pod for pod in observed.pods if pod.spec.node_name == node and _is_of(pod, replica)]
        if self._placement.fits_on(observed.job, replica, node, own):
            return ""
        lacking = self._placement.lacking(observed.job, node, own)
        resource = GPU if GPU in lacking else next(iter(sorted(lacking)), GPU)
        asked, offered = lacking.get(resource, 0), self._placement.offers(node, resource)
        if offered < asked:
            return too_small(resource, asked, offered)
        takers = _takers(self._caches.pods_on(node), resource)
        listed = ", ".join(takers[:MOST_NAMED]) + (
            f" and {len(takers) - MOST_NAMED} more" if takers[MOST_NAMED:] else ""
        )
        return f"its {resource} was taken by {listed or 'somebody else'}: the replica starts there when that ends"


def too_small(resource: str, asked: int, offered: int) -> str:
    """Of a machine on which the replica will never have room, in nanos."""
    return (
        f"its node has {number_text(resource, offered, down=True)} of the {quantity_text(resource, asked)} that the "
        "replica asks for: name a larger machine in the SpotInstanceVM, and delete this ProvisionedInstance"
    )


def too_few_gpus(template: str, asked: int, offered: int) -> str:
    gpus = quantity_text(GPU, offered * NANO) if offered else "no GPU"
    return (
        f"no machine is ordered: those of SpotInstanceVM {template} have {gpus}, and a replica asks for {asked}: "
        "correct gpu and gcp.machineType there, or create a new job that asks for less"
    )


def _is_of(pod: Pod, replica: ReplicaStatus) -> bool:
    """A pod of an attempt of the replica that still takes room."""
    return pod.metadata.labels.get(REPLICA_LABEL) == str(replica.replica) and not pod.is_finished


def _takers(pods: Iterable[Pod], resource: str) -> list[str]:
    """The pods that use the resource, by namespace and name."""
    using = (pod for pod in pods if not pod.is_finished and pod_requests(pod.spec).get(resource, 0) > 0)
    return sorted(f"pod {pod.metadata.key}" for pod in using)
