"""SIGTERM and SIGINT: obeyed at once before the training starts, after the step under way from then on."""

import signal
from types import FrameType

from holdfast.trainer.errors import Stopped

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupt:
    def __init__(self) -> None:
        self.number = 0
        self._patient = False

    def listen(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._note)

    def after_step(self) -> None:
        """From now on the first signal is only noted, in number; a second one is still obeyed at once."""
        self._patient = True

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.number or not self._patient:
            raise Stopped(number)
        self.number = number
