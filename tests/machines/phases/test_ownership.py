"""Whose a machine is: one that was ordered for a job goes when its object has no owner any more."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.api.core.pod import LocalObjectReference
from holdfast.api.machine_ends import end_reason
from holdfast.api.meta import OwnerReference
from holdfast.machines.phases.step import CancelTask, DropFinalizer, ReportNothing, StartTask
from holdfast.machines.snapshot import MachineSnapshot, with_instance, with_status
from holdfast.machines.work import MachineTask
from tests.machines.observations import (
    ASKED,
    ENDING,
    JOINED,
    LAUNCHED,
    SERVING,
    Decided,
    node,
    running,
    seen,
)

JOB = OwnerReference(
    api_version="training.training.dcnlab.com/v1alpha1", kind="SpotInstanceJob", name="bert", uid="job"
)
OTHER = OwnerReference(api_version="v1", kind="ConfigMap", name="notes", uid="notes")
OURS = {"app.kubernetes.io/managed-by": "holdfast", "holdfast.dev/spot-job": "bert"}
REF = LocalObjectReference(name="bert")


def owned(
    observed: MachineSnapshot,
    *owners: OwnerReference,
    labels: dict[str, str] = OURS,
    job: LocalObjectReference | None = REF,
) -> MachineSnapshot:
    meta = structs.replace(observed.instance.metadata, owner_references=owners, labels=labels)
    spec = structs.replace(observed.instance.spec, job_ref=job)
    return with_instance(observed, structs.replace(observed.instance, metadata=meta, spec=spec))


@pytest.mark.parametrize("status", [ASKED, LAUNCHED, JOINED, SERVING])
@pytest.mark.parametrize("owners", [(), (OTHER,)], ids=["nobody", "another"])
def test_a_machine_without_its_job_is_given_back(status: dict[str, Any], owners: tuple[OwnerReference, ...]) -> None:
    observed = owned(seen(status, node=node()), *owners)
    it = Decided(observed, 50)
    assert (it.where, it.condition("Preempted")) == (("End", "Deleting"), ("False", "JobGone"))
    assert it.message.endswith("its job is gone")
    assert it.effects == (StartTask(MachineTask.DELETE),)
    why = end_reason(with_status(observed, it.status).instance)
    assert why is not None
    assert why.reason == "JobGone"


def test_a_machine_that_was_never_asked_for_is_not_made_without_its_job() -> None:
    it = Decided(owned(seen()), 0)
    assert (it.where, it.effects) == (("End", "Gone"), (ReportNothing(), DropFinalizer()))


def test_a_launch_or_a_join_that_is_under_way_ends_first() -> None:
    assert Decided(owned(seen(ASKED, work={MachineTask.LAUNCH: running()})), 50).effects == (
        CancelTask(MachineTask.LAUNCH),
    )
    assert Decided(owned(seen(LAUNCHED, work={MachineTask.JOIN: running()})), 50).effects == (
        CancelTask(MachineTask.JOIN),
    )


@pytest.mark.parametrize(
    "observed",
    [
        owned(seen(SERVING, node=node()), JOB),
        owned(seen(SERVING, node=node()), OTHER, JOB),
        owned(seen(SERVING, node=node()), labels={}),
        owned(seen(SERVING, node=node()), labels={"app.kubernetes.io/managed-by": "argocd"}),
        owned(seen(SERVING, node=node()), job=None),
    ],
    ids=["its job", "its job and another", "by hand", "by another program", "for no job"],
)
def test_a_machine_of_its_job_or_of_a_person_stays(observed: MachineSnapshot) -> None:
    it = Decided(observed, 50)
    assert (it.status.phase, it.effects) == ("Serve", ())


def test_a_machine_that_ends_already_keeps_its_reason() -> None:
    it = Decided(owned(seen(ENDING)), 50)
    assert (it.condition("Preempted"), it.condition("Joined")) == (("", ""), ("False", "Login"))
    assert Decided(owned(seen(SERVING, deleted=True)), 50).status.phase == "Serve", "nothing has to be written"
