"""A machine of the double: what Compute Engine shows of it, and what its metadata server tells."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

Power = Literal["off", "on"]


class Pace(Struct, frozen=True, kw_only=True):
    """How long things take, in seconds."""

    insert_s: float = 8.0
    """From the request until the operation is done; the machine is seen meanwhile."""
    start_s: float = 4.0
    """From then until it is RUNNING."""
    delete_s: float = 20.0
    """STOPPING, and listed, until it is gone."""
    soft_off_s: float = 30.0
    """From the power-off signal until the power is off."""
    seen_running_s: float = 45.0
    """RUNNING after its power went off."""
    fade_s: float = 5.0
    """STOPPING after that, and how long a machine whose insert failed is seen."""
    wait_s: float = 120.0
    """After which zoneOperations.wait answers at the latest."""


REALISTIC = Pace()
# For tests in real time.
QUICK = Pace(insert_s=0.05, start_s=0.02, delete_s=0.05, soft_off_s=0.1, seen_running_s=0.05, fade_s=0.02, wait_s=5.0)


class FakeMachine:
    """`attributes` are the metadata that it was made with, `guest_attributes` what its guest has written."""

    def __init__(self, project: str, zone: str, number: int, body: Mapping[str, Any], created_at: datetime) -> None:
        self.project = project
        self.zone = zone
        self.id = str(number)
        self.name: str = body["name"]
        self.body = body
        self.created_at = created_at
        self.status = "PROVISIONING"
        self.power: Power = "off"
        self.internal_ip = ""
        self.external_ip = ""
        self.attributes = {item["key"]: item["value"] for item in body.get("metadata", {}).get("items", ())}
        self.guest_attributes: dict[tuple[str, str], str] = {}
        self.preempted = False
        self.being_deleted = False
        self.made = asyncio.Event()
        """Its insert has ended, well or not."""
        self.gone = asyncio.Event()
        self.changed = asyncio.Event()
        """Of the metadata server: set, and replaced, at every change."""
        self.held_question = asyncio.Event()
        """Somebody waits for a change at the metadata server."""

    @property
    def path(self) -> str:
        return f"projects/{self.project}/zones/{self.zone}/instances/{self.name}"

    @property
    def labels(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.body.get("labels", {})
        return found

    @property
    def machine_type(self) -> str:
        return str(self.body["machineType"]).rpartition("/")[2]

    @property
    def is_spot(self) -> bool:
        return bool(self.body["scheduling"].get("provisioningModel") == "SPOT")

    @property
    def notice_s(self) -> float:
        """Before the power-off signal."""
        return _seconds(self.body["scheduling"].get("preemptionNoticeDuration")) or 0.0

    @property
    def max_run_s(self) -> float | None:
        return _seconds(self.body["scheduling"].get("maxRunDuration"))

    def publish_host_key(self, algorithm: str, key: str) -> None:
        """As Google's guest agent does: not unless it is told, and never with OS Login."""
        if self.attributes.get("enable-oslogin", "").upper() != "TRUE":
            self.write_guest_attribute("hostkeys", algorithm, key)

    def write_guest_attribute(self, namespace: str, key: str, value: str) -> bool:
        if self.attributes.get("enable-guest-attributes", "").upper() != "TRUE":
            return False
        self.guest_attributes[namespace, key] = value
        self.notify()
        return True

    def notify(self) -> None:
        """Wake those who wait for a change at the metadata server."""
        self.changed.set()
        self.changed = asyncio.Event()

    def as_instance(self, root: str) -> dict[str, Any]:
        """What instances.get shows."""
        interface = {
            **self.body["networkInterfaces"][0],
            "kind": "compute#networkInterface",
            "name": "nic0",
            "networkIP": self.internal_ip,
        }
        if "accessConfigs" in interface:
            interface["accessConfigs"] = [
                {**config, "kind": "compute#accessConfig", **({"natIP": self.external_ip} if self.external_ip else {})}
                for config in interface["accessConfigs"]
            ]
        return {
            **self.body,
            "kind": "compute#instance",
            "id": self.id,
            "creationTimestamp": self.created_at.isoformat(timespec="milliseconds"),
            "status": self.status,
            "zone": f"{root}/projects/{self.project}/zones/{self.zone}",
            "selfLink": f"{root}/{self.path}",
            "networkInterfaces": [interface],
        }

    def __repr__(self) -> str:
        return f"FakeMachine({self.zone}/{self.name} {self.status})"


def _seconds(duration: Mapping[str, Any] | None) -> float | None:
    return None if duration is None else float(duration.get("seconds", 0)) + duration.get("nanos", 0) / 1e9
