"""How often a workload is told what it waits for: each time is a write, and a long line must not write for ever."""

from msgspec import Struct

from holdfast.planning.placement.words import WaitMessage

CALM_S = 60.0


class _Told(Struct, frozen=True):
    wait: WaitMessage
    at_s: float


class MessageThrottle:
    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def throttle(self, uid: str, wait: WaitMessage, now_s: float) -> tuple[WaitMessage, float]:
        """What it is to hear: the first words at once, others when the last ones are a minute old; and when to ask."""
        told = self._told.get(uid)
        if told is not None and wait.message != told.wait.message and now_s < told.at_s + CALM_S:
            return told.wait, told.at_s + CALM_S - now_s
        if told is None or wait.message != told.wait.message:
            self._told[uid] = _Told(wait, now_s)
        return wait, CALM_S

    def forget(self, uid: str) -> None:
        self._told.pop(uid, None)
