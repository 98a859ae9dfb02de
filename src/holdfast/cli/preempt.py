"""`holdfast preempt`: takes a machine of `holdfast up` back, as a cloud does with its spot machines."""

import msgspec
import typer

from holdfast.api.meta import is_true
from holdfast.api.provisionedinstance import PREEMPT_ANNOTATION, ProvisionedInstance, machine_name
from holdfast.cli.errors import UsageError, printable
from holdfast.cli.resource_args import find_kind
from holdfast.cli.session import Session
from holdfast.errors import HoldfastError
from holdfast.times import is_duration

NOW = "0s"


class NotPreempted(HoldfastError):
    """This machine can't be taken back from here."""


async def preempt_machine(session: Session, name: str, *, notice: str, now: bool) -> int:
    if notice and now:
        raise UsageError("--now means without a notice: leave --notice out, or --now")
    if notice and not is_duration(notice):
        raise UsageError(f"--notice {notice} is no duration: write one such as 30s or 2m")
    known = find_kind("provisionedinstance")
    kind, _, bare = name.rpartition("/")
    if kind and find_kind(kind) != known:
        raise UsageError(
            f"{name} is no machine: write the name of a ProvisionedInstance, as `holdfast get pi` shows it"
        )
    key, name = session.key(known, bare), bare
    found = msgspec.convert((await session.get(known, key)).document, ProvisionedInstance)
    if session.data is None:
        raise NotPreempted(_on_a_cloud(found))
    if refusal := refusal_of(found):
        raise NotPreempted(f"{known.title}/{name} {refusal}")
    metadata = {"uid": found.metadata.uid, "annotations": {PREEMPT_ANNOTATION: NOW if now else notice}}
    await session.cluster.patch(known.resource, key, {"metadata": metadata})
    typer.echo(printable(f"{known.title}/{name}: {_what_happens(notice, now=now)}"))
    return 0


def refusal_of(found: ProvisionedInstance) -> str:
    """Why the machine is not taken back; "" when it is."""
    if found.metadata.deletion_timestamp:
        return "is being deleted, and its machine with it"
    if not found.spec.preemptible:
        return "is an on-demand machine, which no cloud takes back: write preemptible: true in its SpotInstanceVM"
    if found.status is not None and is_true(found.status.conditions, "Preempted"):
        return "is preempted already: `holdfast get pi` shows what took its place"
    return ""


def _what_happens(notice: str, *, now: bool) -> str:
    if now:
        return "its machine is taken back at once"
    end = f"{notice} later" if notice else "when its notice is over"
    return f"its machine gets its notice, and is taken back {end}"


def _on_a_cloud(found: ProvisionedInstance) -> str:
    spec, status = found.spec, found.status
    instance = (status.instance_name if status is not None else None) or machine_name(found.metadata.uid)
    where = "".join(
        f" --{flag}={value}" for flag, value in (("zone", spec.zone), ("project", spec.project)) if value is not None
    )
    return (
        "only `holdfast up` takes machines back by this command; have Compute Engine itself do it: "
        f"gcloud compute instances simulate-maintenance-event {instance}{where}"
    )
