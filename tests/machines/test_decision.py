"""One pass over all phases: its order, and what of its status is worth a write at once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.provisionedinstance import ProvisionedInstanceStatus
from holdfast.machines.decision import decide, is_awaited
from holdfast.machines.phases.step import DropFinalizer, RemoveNode, StartTask
from holdfast.machines.snapshot import Absent, CloudProblem, Listed
from holdfast.machines.work import Gone, MachineTask, Succeeded, TaskRunning
from holdfast.providers.errors import CloudUnauthorized, MachineEnded, ProviderError, Stockout
from tests.machines.observations import (
    ASKED,
    ENDING,
    JOINED,
    LAUNCHED,
    MACHINE,
    SERVING,
    TIMING,
    at,
    condition,
    failed,
    node,
    running,
    seen,
)

STATUSES = (None, ASKED, LAUNCHED, JOINED, SERVING, ENDING, {**ENDING, "step": "Gone"})
ERRORS = (ProviderError("503"), Stockout("none"), CloudUnauthorized("no"), MachineEnded("gone", preempted=True))
WORK = st.sampled_from(
    [
        running(),
        Succeeded(MACHINE),
        Succeeded(None),
        Succeeded(Gone(preempted=True)),
        Succeeded(Gone(preempted=False, exists=True)),
        *(failed(error, retry_s=100) for error in ERRORS),
    ]
)


@given(
    status=st.sampled_from(STATUSES),
    work=st.dictionaries(st.sampled_from(MachineTask), WORK),
    deleted=st.booleans(),
    node_there=st.booleans(),
    listed=st.sampled_from([None, Listed(MACHINE, 1), Absent(2)]),
    problem=st.sampled_from([None, CloudProblem("SecretMissing", "no Secret")]),
    now_s=st.floats(0, 5000),
)
def test_whatever_is_seen_nothing_is_made_twice_and_nothing_is_let_go_while_it_may_be_there(
    status: dict[str, Any] | None,
    work: dict[MachineTask, Any],
    deleted: bool,
    node_there: bool,
    listed: Listed | Absent | None,
    problem: CloudProblem | None,
    now_s: float,
) -> None:
    observed = seen(
        status, work=work, deleted=deleted, node=node() if node_there else None, listed=listed, problem=problem
    )
    passes = decide(observed, at(now_s), TIMING)
    effects = [effect for each in passes for effect in each.effects]
    tasks = [effect.task for effect in effects if isinstance(effect, StartTask)]
    if MachineTask.LAUNCH in tasks:
        assert not observed.is_launched
        assert not observed.is_ending
        assert not deleted
        assert passes[0].status.instance_name, "what finds the machine is written first"
        assert StartTask(MachineTask.LAUNCH) not in passes[0].effects
    for task in tasks:
        assert not isinstance(work.get(task), TaskRunning), "of each task one runs"
    if MachineTask.DELETE in tasks:
        assert not isinstance(work.get(MachineTask.LAUNCH), TaskRunning), "what is under way could make it later"
    if DropFinalizer() in effects and observed.is_begun and not observed.finished:
        launched = next((each for each in passes[0].status.conditions if each.type == "Launched"), None)
        was_refused = launched is not None and launched.reason == "Stockout"
        check = work.get(MachineTask.CHECK)
        was_gone = isinstance(check, Succeeded) and isinstance(check.value, Gone)
        assert was_refused or was_gone or isinstance(work.get(MachineTask.DELETE), Succeeded)


def test_why_a_machine_ends_is_written_before_its_node_goes() -> None:
    """Whoever sees a pod go with the node would take it for deleted by somebody, and not for preempted."""
    work = {MachineTask.CHECK: Succeeded(Gone(preempted=True))}
    told, removed, *_ = decide(seen(SERVING, work=work, node=node(), listed=Absent(2)), at(100), TIMING)
    assert not any(isinstance(effect, RemoveNode) for effect in told.effects)
    assert ("Preempted", "True") in {(each.type, each.status) for each in told.status.conditions}
    assert (told.status.phase, told.status.step) == ("End", "Deleting")
    assert any(isinstance(effect, RemoveNode) for effect in removed.effects)
    assert removed.status.step == "Gone"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, ASKED, True),
        (ASKED, LAUNCHED, True),
        (LAUNCHED, {**LAUNCHED, "step": "Login", "message": "logging in"}, False),
        (LAUNCHED, JOINED, False),
        (
            JOINED,
            {**JOINED, "step": "GPUs", "conditions": (*JOINED["conditions"], condition("GPUReady", "False"))},
            False,
        ),
        (JOINED, SERVING, True),
        (SERVING, {**SERVING, "state": "STOPPING", "message": "no list"}, False),
        (SERVING, {**SERVING, "preemption_notice": "2026-03-01T12:00:00Z"}, True),
        (LAUNCHED, ENDING, True),
        (ENDING, {**ENDING, "message": "can't be deleted: 503"}, True),
        (ASKED, {**ASKED, "conditions": (condition("Launched", "False", "SecretMissing"),)}, True),
    ],
)
def test_what_may_be_over_in_a_moment_is_not_awaited_by_anybody(
    old: dict[str, Any] | None, new: dict[str, Any], expected: bool
) -> None:
    assert is_awaited(ProvisionedInstanceStatus(**(old or {})), ProvisionedInstanceStatus(**new)) == expected
