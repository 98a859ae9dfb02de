"""The oldest Kubernetes that is supported: a life with everything in it that differs between versions."""

from tests.control_plane.server import ControlPlane
from tests.operator.conftest import StartOperator, install_kinds
from tests.operator.manifests import training_job
from tests.operator.user import apply, kubectl, status, until_state


async def test_a_job_waits_starts_loses_a_worker_is_scaled_and_completes(
    old_control_plane: ControlPlane, start_operator: StartOperator
) -> None:
    plane = old_control_plane
    install_kinds(plane)
    start_operator(plane, "--namespace=default", "--no-leader-elect")
    monitoring = {"enabled": True, "tensorboardEnabled": True}
    checkpoint = {"storage": {"type": "s3", "s3Bucket": "checkpoints"}}
    await apply(plane, "default", training_job("bert", monitoring=monitoring, checkpoint=checkpoint))
    await until_state(plane, "default", "Pending", "bert")
    await plane.nodes.add(1)
    first, _ = await plane.pods.running("default", 2, labels="holdfast.dev/attempt=0")
    await until_state(plane, "default", "Running", "bert")
    await plane.pods.evict("default", first, "the node was low on memory")
    await plane.pods.running("default", 2, labels="holdfast.dev/attempt=1")
    await until_state(plane, "default", "Running", "bert")
    await kubectl(plane, "scale", "tj/bert", "--replicas=3")
    for worker in await plane.pods.running("default", 3, labels="holdfast.dev/attempt=2"):
        await plane.pods.end("default", worker)
    await kubectl(plane, "wait", "--for=condition=Succeeded", "tj/bert", "--timeout=100s")
    seen = await status(plane, "default", "bert")
    assert (seen["restartCount"], seen["restarts"]) == (2, {"infrastructure": 1})
