"""Which sidecars are called, and where."""

from typing import Any

import msgspec
import pytest

from holdfast.node.notice.sidecars import NodePod, sidecar_url

UID = {"name": "HOLDFAST_JOB_UID", "value": "0b6e-1"}


def pod(
    env: list[dict[str, Any]], *, name: str = "holdfast-sidecar", address: str = "10.1.2.3", phase: str = "Running"
) -> NodePod:
    document = {
        "metadata": {"name": "w-0", "namespace": "ml"},
        "spec": {"initContainers": [{"name": "other"}, {"name": name, "env": env, "image": "x"}]},
        "status": {"phase": phase, "podIP": address},
    }
    return msgspec.convert(document, NodePod)


@pytest.mark.parametrize(
    ("called", "url"),
    [
        (pod([{"name": "X", "valueFrom": {"fieldRef": {}}}, UID]), "http://10.1.2.3:8470/0b6e-1/notice"),
        (pod([UID], address="fd00::7"), "http://[fd00::7]:8470/0b6e-1/notice"),
        (pod([UID], address=""), ""),
        (pod([UID], phase="Pending"), ""),
        (pod([UID], name="a-sidecar"), ""),
        (pod([]), ""),
        (pod([{"name": "HOLDFAST_JOB_UID"}]), ""),
        (pod([{"name": "HOLDFAST_JOB_UID", "value": "../x"}]), ""),
        (pod([{"name": "HOLDFAST_JOB_UID", "value": "a?b=c#d"}]), ""),
        (pod([{"name": "HOLDFAST_JOB_UID", "value": "a\n"}]), ""),
        (pod([{"name": "HOLDFAST_JOB_UID", "value": "x" * 65}]), ""),
    ],
)
def test_a_sidecar_is_called_at_the_pods_own_address_with_the_jobs_uid_or_not_at_all(called: NodePod, url: str) -> None:
    assert sidecar_url(called) == url
