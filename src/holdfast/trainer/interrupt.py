"""SIGTERM and SIGINT: before the training starts they stop the worker at once, later after the current step.

Without numpy: the signals are handled before numpy is imported.
"""

import signal
from types import FrameType

from holdfast.trainer.settings import Stopped

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupt:
    def __init__(self) -> None:
        self.number = 0
        self._waits_for_step = False

    def listen(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def after_step(self) -> None:
        """From now on the first signal is only stored in `number`; a second signal still stops the worker at once."""
        self._waits_for_step = True

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.number or not self._waits_for_step:
            raise Stopped(number)
        self.number = number
