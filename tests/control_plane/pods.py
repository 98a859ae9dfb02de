"""Fake pods: seen, awaited, and ended exactly as a test says."""

from datetime import UTC, datetime

from tests.control_plane.api import JSON, STRATEGIC, Api
from tests.control_plane.waiting import eventually


class Pods:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def all(self, namespace: str, labels: str = "") -> list[JSON]:
        """The pods by name; those of an Indexed Job are in the order of their indexes, up to ten."""
        listing = await self._api.request("GET", f"/api/v1/namespaces/{namespace}/pods", labelSelector=labels)
        return sorted(listing["items"], key=lambda pod: str(pod["metadata"]["name"]))

    async def running(self, namespace: str, count: int = 1, *, labels: str = "", within_s: float = 120.0) -> list[str]:
        """Wait until exactly `count` pods run and are not being deleted, and return their names, sorted."""

        async def phases() -> dict[str, str]:
            pods = await self.all(namespace, labels)
            alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
            return {str(pod["metadata"]["name"]): str(pod["status"]["phase"]) for pod in alive}

        def enough(seen: dict[str, str]) -> bool:
            return list(seen.values()).count("Running") == count

        what = f"{count} pods running in {namespace} {labels}"
        seen = await eventually(phases, enough, what=what, within_s=within_s)
        return [name for name, phase in seen.items() if phase == "Running"]

    async def end(
        self, namespace: str, name: str, exit_code: int = 0, *, reason: str = "", signal: int = 0, message: str = ""
    ) -> None:
        """End every container of a pod now; `message` is what the containers left as their termination message."""
        ended: JSON = {"exitCode": exit_code, "message": message}
        ended["reason"] = reason or ("Completed" if exit_code == 0 else "Error")
        if signal:
            ended["signal"] = signal
        phase = "Succeeded" if exit_code == 0 else "Failed"
        await self._report(namespace, name, {"phase": phase}, ended)

    async def evict(self, namespace: str, name: str, message: str) -> None:
        """End a pod as a kubelet does whose node runs out of something."""
        disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": message}
        status = {"phase": "Failed", "reason": "Evicted", "message": message, "conditions": [disrupted]}
        await self._report(namespace, name, status, {"exitCode": 137, "reason": "Error", "signal": 9})

    async def _report(self, namespace: str, name: str, status: JSON, ended: JSON) -> None:
        """Write what a kubelet reports when a pod's processes are gone; sidecars end after the rest, and well."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        pod = await self._api.request("GET", path)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        when = {"startedAt": pod["status"].get("startTime", now), "finishedAt": now}
        why = "PodCompleted" if status["phase"] == "Succeeded" else "PodFailed"
        conditions = [{"type": kind, "status": "False", "reason": why} for kind in ("ContainersReady", "Ready")]
        conditions += status.get("conditions", [])
        well = {"exitCode": 0, "reason": "Completed"}
        spec = pod["spec"]
        status = {
            **status,
            "conditions": [{**condition, "lastTransitionTime": now} for condition in conditions],
            "containerStatuses": [_terminated(each, {**ended, **when}) for each in spec["containers"]],
            "initContainerStatuses": [_terminated(each, {**well, **when}) for each in spec.get("initContainers", [])],
        }
        async with self._api.session() as session:
            await session.request("PATCH", f"{path}/status", {"status": status}, content_type=STRATEGIC)


def _terminated(container: JSON, ended: JSON) -> JSON:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": 0,
        "state": {"terminated": ended},
    }
