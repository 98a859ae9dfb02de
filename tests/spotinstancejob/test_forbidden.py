"""What an operator forbids holds for the templates of SpotInstanceJobs, too."""

from typing import Any

import pytest

from holdfast.pods.template import ForbiddenFeature
from holdfast.spotinstancejob.forbidden import mode_refusal, node_refusal, refusal
from tests.spotinstancejob.jobs import CPU_CONTAINER, spot_job

EVERYTHING = frozenset(ForbiddenFeature)
MODEST: dict[str, Any] = {"securityContext": {"runAsNonRoot": True}, "automountServiceAccountToken": False}
TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}


def asked(**pod_spec: Any) -> str:
    return refusal(spot_job(CPU_CONTAINER, pod_spec={**MODEST, **pod_spec}), EVERYTHING)


def test_a_modest_template_asks_for_nothing_and_without_the_option_nothing_is_refused() -> None:
    assert asked() == ""
    assert asked(securityContext={"runAsUser": 1000}) == ""
    assert refusal(spot_job(pod_spec={"hostNetwork": True}), frozenset()) == ""


def test_memory_can_only_be_saved_where_containers_are_run() -> None:
    memory, files = (spot_job(checkpoints={"mode": mode}) for mode in ("container", "application"))
    assert mode_refusal(memory, runs_containers=True) == ""
    assert mode_refusal(files, runs_containers=False) == ""
    assert mode_refusal(spot_job(), runs_containers=False) == ""
    assert "leave it out" in mode_refusal(memory, runs_containers=False)


def test_a_template_does_not_name_the_node_of_its_replicas() -> None:
    assert node_refusal(spot_job()) == ""
    assert node_refusal(spot_job(pod_spec={"nodeName": None})) == ""
    said = node_refusal(spot_job(pod_spec={"nodeName": "gpu-7"}))
    assert "nodeName: gpu-7" in said
    assert "leave nodeName out" in said


@pytest.mark.parametrize(
    ("pod_spec", "what", "which"),
    [
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "a path of the node (volume v)", "hostPath"),
        ({"volumes": [TOKEN]}, "a token of its service account (volume t)", "serviceAccountToken"),
        (
            {"automountServiceAccountToken": None},
            "a token of its service account (without automountServiceAccountToken: false)",
            "serviceAccountToken",
        ),
        ({"hostNetwork": True}, "the node's network", "hostNetwork"),
        ({"hostPID": True}, "the node's processes", "hostNetwork"),
        ({"hostIPC": True}, "the node's memory", "hostNetwork"),
        ({"securityContext": {}}, "leave to run as root (container main, without runAsNonRoot: true)", "root"),
        ({"securityContext": {"runAsUser": 0}}, "leave to run as root", "root"),
        ({"initContainers": [{"name": "i", "securityContext": {"runAsNonRoot": False}}]}, "(container i,", "root"),
        ({"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]}, "(container i,", "root"),
        ({"serviceAccountName": "admin"}, "the service account admin", "serviceAccountName"),
        ({"serviceAccount": "admin"}, "the service account admin", "serviceAccountName"),
    ],
)
def test_what_the_operator_forbids_is_refused_with_the_option(pod_spec: Any, what: str, which: str) -> None:
    said = asked(**pod_spec)
    assert said.startswith("spec.jobTemplate asks for ")
    assert what in said
    assert said.endswith(f"which the operator forbids (--forbid {which}): leave it out")
    job = spot_job(CPU_CONTAINER, pod_spec={**MODEST, **pod_spec})
    assert refusal(job, EVERYTHING - {ForbiddenFeature(which)}) == ""
