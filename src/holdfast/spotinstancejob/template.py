"""What a job's template says: the containers of a replica, and which of them trains. Pure."""

from typing import Any

from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.pods.template import GPU


def pod_template(job: SpotInstanceJob) -> dict[str, Any]:
    """The template of a replica's pod, as it is written. Not to be changed."""
    template: dict[str, Any] = job.spec.job_template["spec"]["template"]
    return template


def containers(job: SpotInstanceJob) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod_template(job)["spec"]["containers"]
    return found


def has_gpu(container: dict[str, Any]) -> bool:
    resources = container.get("resources") or {}
    sides = (resources.get(side) or {} for side in ("limits", "requests"))
    return any(str(amounts.get(GPU, "0")) != "0" for amounts in sides)


def training_container(job: SpotInstanceJob) -> str:
    """The container whose image stands for the replica: the first one with a GPU, else the first."""
    found = containers(job)
    name: str = next((each for each in found if has_gpu(each)), found[0])["name"]
    return name
