"""Random sequences of operations: the cluster answers and shows exactly what the reference model predicts."""

from hypothesis import given

from .engine import Engine
from .leaving import leave
from .model import predict
from .operations import Operation, difference
from .replay import Replay
from .sequences import SEQUENCES, drawn


@drawn(30)
@given(operations=SEQUENCES)
async def test_a_cluster_does_what_the_model_predicts(engine: Engine, operations: list[Operation]) -> None:
    namespace = await engine.namespace()
    recorded = await Replay(engine.cluster, namespace).record(operations)
    await leave(engine.cluster, namespace)
    assert difference(operations, recorded, predict(operations)) == ""
