"""A pod on one machine proves who it is, as it would on a cluster."""

from pathlib import Path

from holdfast.cluster.protocol import JSON, DeleteOptions
from holdfast.cluster.resources import PODS
from holdfast.local.host import detect_hardware
from holdfast.local.up import local_cluster
from tests.contract.waiting import gone
from tests.control_plane.waiting import eventually

AUDIENCE = "holdfast.dev/reports"
POD: JSON = {
    "metadata": {"name": "one"},
    "spec": {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "main",
                "image": "registry.invalid/main:1",
                "command": ["sh", "-c", "cat /proof/token; echo; exec sleep 600"],
                "volumeMounts": [{"name": "proof", "mountPath": "/proof"}],
            }
        ],
        "volumes": [
            {
                "name": "proof",
                "projected": {"sources": [{"serviceAccountToken": {"audience": AUDIENCE, "path": "token"}}]},
            }
        ],
    },
}


async def test_a_pods_token_is_known_to_the_cluster_as_long_as_the_pod_is_there(tmp_path: Path) -> None:
    async with local_cluster(tmp_path / "box", detect_hardware(0), limits=False) as box:
        made = await box.cluster.create(PODS, POD, namespace="default")
        key = made.metadata.key

        async def written() -> str:
            pod = await box.cluster.get(PODS, key)
            return (await box.cluster.pod_log(key)).decode() if pod.status.phase == "Running" else ""

        token = (await eventually(written, lambda log: log.endswith("\n"), what="the pod has shown its token")).strip()
        found = await box.cluster.review_token(token, AUDIENCE)
        assert found is not None
        assert (found.namespace, found.pod_name, found.pod_uid) == ("default", "one", made.metadata.uid)
        assert found.username == "system:serviceaccount:default:default"
        assert await box.cluster.review_token(token, "another") is None
        await box.cluster.delete(PODS, key, DeleteOptions(grace_period_s=0))
        await gone(box.cluster, PODS, key)
        assert await box.cluster.review_token(token, AUDIENCE) is None
