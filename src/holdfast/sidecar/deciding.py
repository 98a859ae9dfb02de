"""What worker 0 has decided that all workers begin with, and for how long that counts.

A job that is suspended goes on with new pods in the same attempt, from what was saved meanwhile. So a decision ends
with the pod that made it, if that was told to go: who starts before the next worker 0 has decided waits, and does not
begin further back.
"""

import contextlib
import json

from holdfast.checkpoints.names import CheckpointName
from holdfast.checkpoints.resume import DecisionPending, read_decision
from holdfast.checkpoints.store import Store

WITHDRAWN = "withdrawn"


def standing_decision(store: Store, attempt: int, job: str) -> CheckpointName | None:
    if _facts(store, attempt).get(WITHDRAWN):
        raise DecisionPending(f"worker 0 has not written to {store.address} yet what attempt {attempt} goes on from")
    return read_decision(store, attempt, job)


def withdraw_decision(store: Store, attempt: int) -> bool:
    """Whether it was withdrawn before, so that the attempt's earlier pods have ended.

    The rest of the note stays: where the attempt began counts for what earlier ones still save.
    """
    facts = _facts(store, attempt)
    if facts and not facts.get(WITHDRAWN):
        store.write_decision(attempt, json.dumps({**facts, WITHDRAWN: True}).encode())
    return bool(facts.get(WITHDRAWN))


def _facts(store: Store, attempt: int) -> dict[str, object]:
    with contextlib.suppress(ValueError, RecursionError):
        facts = json.loads(store.read_decision(attempt) or b"{}")
        return facts if isinstance(facts, dict) else {}
    return {}
