"""An operator in the test's own event loop, with the controllers that the test adds to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from holdfast.cluster.protocol import Cluster
from holdfast.pods.template import Defaults
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator, OperatorSettings
from holdfast.runtime.process import Now, utc_now

DEFAULTS = Defaults(image="holdfast:test", holdfast_image="holdfast:test")


def namespace_operator(cluster: Cluster, namespace: str, *, now: Now = utc_now) -> Operator:
    """An operator for one namespace; controllers are added before it runs."""
    settings = OperatorSettings(namespaces=(namespace,), workers=4)
    return Operator(cluster, identity="test", now=now, random=Random(0), metrics=Metrics(), settings=settings)


@asynccontextmanager
async def running(operator: Operator) -> AsyncIterator[Operator]:
    """It works inside the block."""
    task = asyncio.create_task(operator.run())
    try:
        yield operator
    finally:
        operator.stop()
        await task
