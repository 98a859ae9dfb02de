"""What an operator can be told to refuse."""

from typing import Any

import pytest

from holdfast.api.gpuworkload import GPUWorkload
from holdfast.gpuworkload.job import pod_template as workload_template
from holdfast.pods.template import Defaults, ForbiddenFeature
from holdfast.trainingjob.objects.job import pod_template, refusal
from tests.gpuworkloads import workload
from tests.trainingjobs import training_job

ALL = frozenset(ForbiddenFeature)
TOKEN = {"projected": {"sources": [{"configMap": {"name": "a"}}, {"serviceAccountToken": {"path": "token"}}]}}
ASKING: list[tuple[str, dict[str, Any], str]] = [
    ("hostPath", {"volumes": [{"name": "disk", "hostPath": {"path": "/"}}]}, "a path of the node (volume disk)"),
    ("hostNetwork", {"hostNetwork": True}, "the node's network"),
    ("root", {"securityContext": {"runAsUser": 0}}, "leave to run as root"),
    ("root", {"securityContext": {"runAsNonRoot": False}}, "leave to run as root"),
    (
        "serviceAccountToken",
        {"volumes": [{"name": "api", **TOKEN}]},
        "a token of its service account (volume api)",
    ),
    ("serviceAccountName", {"serviceAccountName": "admin"}, "the service account admin"),
    ("serviceAccountName", {"serviceAccountName": "bert"}, "the service account bert"),
]


@pytest.mark.parametrize(("which", "template", "words"), ASKING)
def test_a_job_that_asks_for_what_is_forbidden_is_refused_with_the_option(
    which: str, template: dict[str, Any], words: str
) -> None:
    said = refusal(training_job({"podTemplate": template}), ALL)
    expected = f"spec.podTemplate asks for {words}, which the operator forbids (--forbid {which}): leave it out"
    assert said == expected
    assert refusal(training_job({"podTemplate": template}), ALL - {ForbiddenFeature(which)}) == ""


def test_all_that_is_forbidden_is_said_at_once() -> None:
    job = training_job({"podTemplate": {"hostNetwork": True, "serviceAccountName": "admin"}})
    assert refusal(job, ALL).endswith("(--forbid hostNetwork --forbid serviceAccountName): leave it out")


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"securityContext": {"runAsUser": 2000, "fsGroup": 0}},
        {"volumes": [{"name": "data", "nfs": {"server": "filer", "path": "/data"}}]},
        {"volumes": [{"name": "all", "projected": {"sources": [{"secret": {"name": "s"}}]}}]},
    ],
)
def test_what_is_not_forbidden_is_let_through(template: dict[str, Any]) -> None:
    assert refusal(training_job({"podTemplate": template}), ALL) == ""
    assert refusal(training_job(), ALL) == ""


def privileges(spec: dict[str, Any]) -> list[str]:
    """What a pod's spec has of the five; the operator's own volumes apart."""
    volumes = [one for one in spec.get("volumes", ()) if not one["name"].startswith("holdfast-")]
    sources = [source for one in volumes for source in one.get("projected", {}).get("sources", ())]
    found = {
        "hostPath": any("hostPath" in one for one in volumes),
        "hostNetwork": spec.get("hostNetwork", False),
        "root": spec["securityContext"]["runAsUser"] == 0 or not spec["securityContext"]["runAsNonRoot"],
        "serviceAccountToken": spec["automountServiceAccountToken"] or any("serviceAccountToken" in s for s in sources),
        "serviceAccountName": spec.get("serviceAccountName", "bert") != "bert",
    }
    return [name for name, is_there in found.items() if is_there]


def test_a_gpuworkload_and_a_job_that_says_nothing_have_none_of_them() -> None:
    defaults = Defaults(image="trainer", holdfast_image="holdfast")
    assert privileges(pod_template(training_job({"checkpoint": {}}), defaults)["spec"]) == []
    made: GPUWorkload = workload()
    assert privileges(workload_template(made, defaults)["spec"]) == []
    asking = training_job({"podTemplate": {"hostNetwork": True, "serviceAccountName": "admin"}})
    assert privileges(pod_template(asking, defaults)["spec"]) == ["hostNetwork", "serviceAccountName"]
