"""The API server, and the embedded one, take the Job as it is and leave what it says alone."""

from random import Random

import pytest
from msgspec import structs

from holdfast.api.gpuworkload import GPUWorkload
from holdfast.cluster.resources import JOBS
from holdfast.local.apiserver.server import open_cluster
from holdfast.runtime.process import utc_now
from tests.control_plane.server import ControlPlane
from tests.gpuworkload.objects.golden import EXAMPLES, example, made
from tests.trainingjob.objects.family import GONE, differences, fields
from tests.trainingjob.objects.test_accepted import restricted, tried

__all__ = ["restricted"]  # a fixture


def here(name: str, namespace: str) -> GPUWorkload:
    it = example(name)
    return structs.replace(it, metadata=structs.replace(it.metadata, namespace=namespace))


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_made_is_stored_as_it_is(control_plane: ControlPlane, namespace: str, name: str) -> None:
    job = made(here(name, namespace))
    stored = tried(control_plane, [job])
    lost = {path: pair for path, pair in differences(fields([job]), fields(stored)).items() if pair[0] != GONE}
    assert lost == {}


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_pod_keeps_to_the_restricted_profile(control_plane: ControlPlane, restricted: str, name: str) -> None:
    job = made(here(name, restricted))
    template = job["spec"]["template"]
    metadata = {**template["metadata"], "name": "trial", "namespace": restricted}
    (pod,) = tried(control_plane, [{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}])
    assert pod["metadata"]["name"] == "trial"


@pytest.mark.parametrize("name", EXAMPLES)
async def test_the_embedded_engine_takes_it_too(name: str) -> None:
    cluster = await open_cluster(None, now=utc_now, rng=Random(0))
    job = made(here(name, "default"))
    # Without the owner that was never made: what it leaves behind is collected at once.
    del job["metadata"]["ownerReferences"]
    try:
        stored = await cluster.create(JOBS, job, namespace="default")
        assert stored.metadata.name == job["metadata"]["name"]
    finally:
        await cluster.close()
