"""Finds out why a try has no pod; only the Events of its Job tell."""

from msgspec import structs

from holdfast.cluster.protocol import Cluster
from holdfast.controllers.trainingjob.reasons import newest_warning
from holdfast.planning.gpuworkload.binding import lacks_pod
from holdfast.planning.gpuworkload.observed import Observed
from holdfast.planning.trainingjob.plain import sanitize
from holdfast.planning.trainingjob.waiting import refused_because


async def with_job_problem(observed: Observed, cluster: Cluster) -> Observed:
    """Asked with each look, of which there are few: without a pod there is no news."""
    if observed.job is None or not lacks_pod(observed):
        return observed
    said = await newest_warning(cluster, observed.job)
    return structs.replace(observed, job_problem=sanitize(refused_because(said))) if said else observed
