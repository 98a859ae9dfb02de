"""Preemptions on command: a ProvisionedInstance with the annotation holdfast.dev/preempt has its machine taken back."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Protocol

from holdfast.api.meta import Key
from holdfast.api.provisionedinstance import PREEMPT_ANNOTATION, ProvisionedInstance, machine_name
from holdfast.api.spotinstancevm import SOLD_OUT_ANNOTATION, SpotInstanceVM
from holdfast.cluster.resources import PROVISIONED_INSTANCES
from holdfast.providers.errors import InvalidMachine, MachineEnded, MachineNotFound
from holdfast.runtime.controller import Controller, Done, Result, TerminalError
from holdfast.runtime.events import Recorder
from holdfast.runtime.informer import Store
from holdfast.runtime.operator import Operator
from holdfast.times import is_duration, parse_duration_s

REASON = "InvalidPreemption"


class Preempting(Protocol):
    async def preempt(self, name: str, *, notice_s: float | None = None) -> datetime: ...


class PreemptionRequests:
    """Passes requests on to the provider, which takes a machine back once, however often it is asked."""

    def __init__(self, instances: Store[ProvisionedInstance], provider: Preempting, events: Recorder) -> None:
        self._instances = instances
        self._provider = provider
        self._events = events

    async def reconcile(self, key: Key) -> Result:
        instance = self._instances.get(key)
        asked = instance.metadata.annotations.get(PREEMPT_ANNOTATION) if instance is not None else None
        if instance is None or asked is None:
            return Done()
        if asked and not is_duration(asked):
            raise TerminalError(
                REASON, f"annotation {PREEMPT_ANNOTATION} is {asked!r}: write a duration, such as 30s, or nothing"
            )
        try:
            await self._provider.preempt(
                machine_name(instance.metadata.uid), notice_s=parse_duration_s(asked) if asked else None
            )
        except (MachineNotFound, MachineEnded):
            return Done()  # not made yet, and what makes it changes this object; or gone
        except InvalidMachine as error:
            raise TerminalError(REASON, str(error)) from None
        return Done()

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        instance = self._instances.get(key)
        if instance is not None:
            self._events.warning(PROVISIONED_INSTANCES, instance, error.reason, error.message)


def preemption_requests(operator: Operator, provider: Preempting) -> Controller[ProvisionedInstance]:
    instances = operator.store(PROVISIONED_INSTANCES)
    reconciler = PreemptionRequests(instances, provider, operator.recorder)
    return Controller(
        name="preemptions", resource=PROVISIONED_INSTANCES, reconciler=reconciler, writer=operator.writer()
    )


def template_zones(templates: Store[SpotInstanceVM]) -> Callable[[], Iterable[str]]:
    """The zones that templates name."""
    return lambda: (zone for each in templates for zone in (each.spec.gcp.zone, *each.spec.zones))


def sold_out_zones(templates: Store[SpotInstanceVM]) -> Callable[[], Iterable[str]]:
    """The zones that have no machine to spare, as annotations of templates say."""

    def zones() -> set[str]:
        written = (each.metadata.annotations.get(SOLD_OUT_ANNOTATION, "") for each in templates)
        return {zone.strip() for text in written for zone in text.split(",") if zone.strip()}

    return zones
