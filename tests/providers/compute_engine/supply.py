"""What there is to have: machines of a zone, quotas of the project, addresses of a subnetwork."""

from collections.abc import Collection, Iterable

from tests.providers.compute_engine.catalog import GLOBAL_GPUS, MACHINE_TYPES, gpu_quota, region_of
from tests.providers.compute_engine.machine import FakeMachine
from tests.providers.compute_engine.refusals import OperationFailure, no_addresses, over_quota, stockout


class Supply:
    """Without a limit there is enough."""

    def __init__(self) -> None:
        self.sold_out: set[str] = set()
        """Zones without a machine to spare."""
        self.capacity: dict[str, int] = {}
        """By zone, how many machines it has in all."""
        self.quotas: dict[tuple[str, str], float] = {}
        """By the quota's name and its region, which is empty for one of the whole project."""
        self.addresses: dict[str, int] = {}
        """By region, how many machines its subnetwork has addresses for."""

    def shortage(self, machine: FakeMachine, others: Collection[FakeMachine]) -> OperationFailure | None:
        """Why this machine can't be had beside the others."""
        return (
            self._over_quota(machine, others)
            or self._without_address(machine, others)
            or self._stockout(machine, others)
        )

    def _stockout(self, machine: FakeMachine, others: Iterable[FakeMachine]) -> OperationFailure | None:
        taken = sum(other.zone == machine.zone for other in others)
        if machine.zone in self.sold_out or taken >= self.capacity.get(machine.zone, taken + 1):
            return stockout(machine.project, machine.zone, machine.machine_type)
        return None

    def _over_quota(self, machine: FakeMachine, others: Collection[FakeMachine]) -> OperationFailure | None:
        kind, count = gpus(machine)
        region = region_of(machine.zone)
        if not count:
            return None
        name = gpu_quota(kind, spot=machine.is_spot)
        held = sum(
            gpus(other)[1]
            for other in others
            if region_of(other.zone) == region and gpu_quota(gpus(other)[0], spot=other.is_spot) == name
        )
        limit = self.quotas.get((name, region))
        if limit is not None and held + count > limit:
            return over_quota(name, region, limit)
        everywhere = self.quotas.get((GLOBAL_GPUS, ""))
        if everywhere is not None and sum(gpus(other)[1] for other in others) + count > everywhere:
            return over_quota(GLOBAL_GPUS, "", everywhere)
        return None

    def _without_address(self, machine: FakeMachine, others: Iterable[FakeMachine]) -> OperationFailure | None:
        region = region_of(machine.zone)
        held = sum(region_of(other.zone) == region for other in others)
        if held < self.addresses.get(region, held + 1):
            return None
        subnetwork = machine.body["networkInterfaces"][0].get("subnetwork", "default")
        return no_addresses(machine.project, region, str(subnetwork).rpartition("/")[2])


def gpus(machine: FakeMachine) -> tuple[str, int]:
    """Type and number, attached or brought by the machine type."""
    if attached := machine.body.get("guestAccelerators"):
        return str(attached[0]["acceleratorType"]).rpartition("/")[2], int(attached[0]["acceleratorCount"])
    kind = MACHINE_TYPES[machine.machine_type]
    return kind.accelerator, kind.accelerators
