"""What is known of a container at one moment, and the delays between its restarts."""

from typing import TypeAlias

from msgspec import Struct

FIRST_DELAY_S = 10.0
LONGEST_DELAY_S = 300.0
# A container that has run this long is no longer one that crashes in a loop.
HEALTHY_AFTER_S = 600.0


class Waiting(Struct, frozen=True):
    reason: str = "PodInitializing"
    message: str = ""


class Running(Struct, frozen=True):
    started_at: str


class Terminated(Struct, frozen=True, kw_only=True):
    exit_code: int
    reason: str
    message: str = ""
    signal: int = 0
    started_at: str = ""
    finished_at: str = ""


State: TypeAlias = Waiting | Running | Terminated


class ContainerSnapshot(Struct, frozen=True, kw_only=True):
    """A container's part of its pod's status."""

    name: str
    image: str
    state: State = Waiting()
    last: Terminated | None = None
    restarts: int = 0
    started: bool = False
    ready: bool = False
    is_sidecar: bool = False


def restarts_again(policy: str, exit_code: int) -> bool:
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def restart_delay_s(crashes: int) -> float:
    """Before the next start, after so many crashes in a row: the first is at once, then 10 s and doubling."""
    return 0.0 if crashes <= 1 else min(FIRST_DELAY_S * 2 ** min(crashes - 2, 10), LONGEST_DELAY_S)
