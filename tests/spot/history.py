"""What the cluster and the cloud have gone through, and the promises that are held at each moment."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.core.objects import Job
from holdfast.api.meta import Key, Object
from holdfast.api.provisionedinstance import ProvisionedInstance, machine_name
from holdfast.api.spotinstancejob import REPLICA_LABEL, SPOT_JOB_LABEL
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, JOBS, PROVISIONED_INSTANCES
from holdfast.runtime.informer import Informers
from holdfast.spotinstancejob.names import ATTEMPT_LABEL
from tests.providers.compute_engine.calls import RecordedCall
from tests.providers.compute_engine.double import ComputeEngine


class Need(NamedTuple):
    """One attempt of one replica."""

    job: Key
    replica: int
    attempt: int


class History:
    """`problems`: promises that were not held."""

    def __init__(self, engine: ComputeEngine) -> None:
        self._engine = engine
        self.problems: list[str] = []
        self._made: set[tuple[str, Key]] = set()
        """By kind and name what was ever made."""
        self.needs: dict[str, Need] = {}
        """By name of a machine what it was ordered for."""
        self.objects: dict[str, str] = {}
        """By name of a machine the ProvisionedInstance that it is of."""
        engine.after_call = self._after_call

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        """As an event source: it sees all that is made."""
        informers.of(JOBS).handlers.append(self._seen_job)
        informers.of(CHECKPOINT_BACKUPS).handlers.append(self._seen_backup)
        informers.of(PROVISIONED_INSTANCES).handlers.append(self._seen_order)

    def _seen_job(self, old: Job | None, new: Job | None) -> None:
        self._once("Job", old, new)

    def _seen_backup(self, old: CheckpointBackup | None, new: CheckpointBackup | None) -> None:
        self._once("CheckpointBackup", old, new)

    def _seen_order(self, old: ProvisionedInstance | None, new: ProvisionedInstance | None) -> None:
        self._once("ProvisionedInstance", old, new)
        if new is None:
            return
        labels, name = new.metadata.labels, machine_name(new.metadata.uid)
        self.objects[name] = new.metadata.name
        if SPOT_JOB_LABEL in labels:
            job = Key(new.metadata.namespace, labels[SPOT_JOB_LABEL])
            self.needs[name] = Need(job, int(labels[REPLICA_LABEL]), int(labels[ATTEMPT_LABEL]))

    def _once(self, kind: str, old: Object | None, new: Object | None) -> None:
        if new is None or (old is not None and old.metadata.uid == new.metadata.uid):
            return
        if (kind, new.metadata.key) in self._made:
            self.problems.append(f"{kind} {new.metadata.key} was made twice")
        self._made.add((kind, new.metadata.key))

    async def _after_call(self, call: RecordedCall) -> None:
        if call.method == "instances.insert":
            self._check_needs(call.target)

    def _check_needs(self, name: str) -> None:
        """One machine per need, and never a second one for the same object."""
        if sum(each.name == name for each in self._engine.made) > 1:
            self.problems.append(f"machine {name} was made twice")
        need = self.needs.get(name)
        beside = [
            each.name
            for each in self._engine.machines.values()
            if each.name != name and need is not None and self.needs.get(each.name) == need
        ]
        if beside:
            self.problems.append(f"{self.objects.get(name)} was made beside {beside} for {need}")

    @property
    def machines_per_need(self) -> Counter[Need]:
        return Counter(self.needs[each.name] for each in self._engine.made if each.name in self.needs)
