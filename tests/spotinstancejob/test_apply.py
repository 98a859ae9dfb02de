"""What follows when the API server refuses what a SpotInstanceJob needs."""

from typing import Any, cast

import pytest
from msgspec import structs

from holdfast.cluster.errors import Forbidden, Invalid
from holdfast.cluster.protocol import JSON, Cluster, Resource
from holdfast.pods.template import ForbiddenFeature
from holdfast.runtime.children import Blocked
from holdfast.runtime.controller import TerminalError
from holdfast.runtime.read_your_writes import TrackedClient
from holdfast.spotinstancejob.apply import SpotInstanceJobApplier
from holdfast.spotinstancejob.decide.actions import OrderMachine, StartReplica
from holdfast.spotinstancejob.pull_secret import NoPullSecrets
from tests.spotinstancejob.golden import DEFAULTS
from tests.spotinstancejob.jobs import REPOSITORY, spot_job
from tests.spotinstancejob.replicas import variables
from tests.spotinstancejob.seen import replica, seen
from tests.trainingjobs import stamp

ORDERED = {**replica(0, "Recovering", attempt=1), "machine": "bert-r0-1-m0", "machineTry": 1}


class Refusing:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def create(self, resource: Resource[Any], body: JSON, *, namespace: str) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "started", "expected"),
    [
        (Invalid("spec.zone: no such zone"), None, TerminalError),
        # A policy may have come since: a survivor is not stopped for that.
        (Invalid("a policy wants another label"), stamp(0), Blocked),
        (Forbidden("exceeded quota"), None, Blocked),
        (Forbidden("exceeded quota"), stamp(0), Blocked),
    ],
)
async def test_a_refusal_ends_the_job_only_before_it_has_begun(
    error: Exception, started: str | None, expected: type[Exception]
) -> None:
    applier = SpotInstanceJobApplier(cast("Cluster", None), NoPullSecrets(), defaults=DEFAULTS, reports=lambda: None)
    observed = seen(ORDERED, replica(1), status={"startTime": started})
    order = OrderMachine(observed.status.job_statuses[0], "us-central1-a")
    with pytest.raises(expected, match=str(error)):
        await applier.apply(order, observed, cast("TrackedClient", Refusing(error)))


async def test_an_attempt_with_what_was_forbidden_meanwhile_waits() -> None:
    defaults = structs.replace(DEFAULTS, forbidden=frozenset([ForbiddenFeature.HOST_NETWORK]))
    applier = SpotInstanceJobApplier(cast("Cluster", None), NoPullSecrets(), defaults=defaults, reports=lambda: None)
    observed = seen(replica(0, "Starting"), replica(1), job=spot_job(pod_spec={"hostNetwork": True}))
    start = StartReplica(observed.status.job_statuses[0])
    with pytest.raises(Blocked, match="--forbid hostNetwork"):
        await applier.apply(start, observed, cast("TrackedClient", None))


class Taking:
    def __init__(self) -> None:
        self.bodies: list[JSON] = []

    async def create(self, resource: Resource[Any], body: JSON, *, namespace: str) -> None:
        self.bodies.append(body)


@pytest.mark.parametrize(("failures", "expected"), [(1, "HOLDFAST_RESUME_NEWEST"), (2, "HOLDFAST_RESUME_EXACTLY")])
async def test_once_an_image_is_set_aside_an_attempt_goes_on_from_exactly_the_one_before(
    failures: int, expected: str
) -> None:
    applier = SpotInstanceJobApplier(cast("Cluster", None), NoPullSecrets(), defaults=DEFAULTS, reports=lambda: None)
    starting = {**replica(0, "Starting", attempt=3), "source": "repository", "restoredFrom": f"{REPOSITORY}:before"}
    failed = [{"image": f"{REPOSITORY}:newest", "application": failures}]
    status = {"imageFailures": failed, "checkpointMode": "application"}
    observed = seen(starting, replica(1), status=status)
    client = Taking()
    await applier.apply(StartReplica(observed.status.job_statuses[0]), observed, cast("TrackedClient", client))
    (*_, made) = client.bodies
    told = variables(made["spec"]["template"]["spec"]["initContainers"][-1])
    assert told["HOLDFAST_RESUME_FROM"] == f"oci://{REPOSITORY}:before"
    assert {name for name in told if name in ("HOLDFAST_RESUME_NEWEST", "HOLDFAST_RESUME_EXACTLY")} == {expected}
