"""An operator of TrainingJobs in the test's own event loop, with or without an office that takes reports."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from msgspec import structs

from holdfast.cluster.protocol import Cluster
from holdfast.pods.template import Defaults
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import utc_now
from holdfast.trainingjob.controller import training_job_controller
from holdfast.trainingjob.decide.snapshot import TrainingJobTiming
from holdfast.trainingjob.reports.receiver import ReportReceiver
from tests.controllers.operating import DEFAULTS, namespace_operator, running

# Short where a test would only wait.
TIMING = TrainingJobTiming(
    retry_s=0.2, restart_grace_s=1, lost_pod_timeout_s=1, explain_s=1, counts_s=0.1, counts_cap_s=0.2
)
LOCAL = "127.0.0.1"


@asynccontextmanager
async def operating(
    cluster: Cluster,
    namespace: str,
    *,
    defaults: Defaults = DEFAULTS,
    office: ReportReceiver | None = None,
    **timing: Any,
) -> AsyncIterator[Operator]:
    """It looks after one namespace inside the block."""
    operator = namespace_operator(cluster, namespace)
    chosen = structs.replace(TIMING, **timing)
    operator.add(
        training_job_controller(
            operator,
            cluster,
            defaults=defaults,
            now=utc_now,
            timing=chosen,
            receiver=office,
            connect=None,  # nobody knows who has the addresses of nodes that do not exist
        )
    )
    async with AsyncExitStack() as stack:
        if office is not None:
            desk = office.serve(operator, cluster, leading=lambda: True, address=LOCAL, port=0, host=LOCAL)
            await stack.enter_async_context(desk)
        yield await stack.enter_async_context(running(operator))
