"""What of the caches belongs to a SpotInstanceJob."""

from holdfast.api.core.objects import Pod
from holdfast.runtime.children import BY_OWNER, owner_uid
from holdfast.runtime.informer import Store
from holdfast.spotinstancejob.observe import BY_SPOT_JOB, SpotInstanceJobCaches, job_of, ordering_uid
from tests.spotinstancejob.jobs import OTHER_UID, replica_pod, spot_job
from tests.trainingjobs import UID


def caches(*pods: Pod) -> SpotInstanceJobCaches:
    made = SpotInstanceJobCaches(
        spot_jobs=Store(),
        templates=Store(),
        machines=Store({BY_SPOT_JOB: ordering_uid}),
        backups=Store({BY_OWNER: owner_uid}),
        jobs=Store({BY_OWNER: owner_uid}),
        pods=Store({BY_SPOT_JOB: job_of}),
        nodes=Store(),
    )
    for pod in pods:
        made.pods.put(pod)
    return made


def test_a_pod_belongs_to_the_job_although_its_batch_job_is_deleted() -> None:
    """It may still run, and no second attempt of its replica may run beside it."""
    own = replica_pod(0, labels={"holdfast.dev/place": f"{UID}-0-0"})
    of_an_earlier_job = replica_pod(1, labels={"holdfast.dev/place": f"{OTHER_UID}-1-0"})
    assert caches(own, of_an_earlier_job).snapshot(spot_job()).pods == (own,)
