"""What this worker was asked to do: to end by a signal, to save by a notice, or by its clock when it is time."""

from collections.abc import Callable

from holdfast.train.notice import Notice
from holdfast.trainer.interrupt import Interrupt
from holdfast.trainer.settings import Settings
from holdfast.trainer.training import StopOrSave


class Interruptions:
    """Of one worker: the clock is looked at on worker 0 alone, a notice may come to any."""

    def __init__(self, settings: Settings, interrupt: Interrupt, *, rank: int, clock: Callable[[], float]) -> None:
        self._interrupt = interrupt
        self._interval_s = settings.checkpoint_interval_s if rank == 0 else None
        self._clock = clock
        self._saves = settings.checkpoint_dir is not None
        self._notice = Notice(settings.notice_file)
        if self._saves:
            self._notice.announce()
        self._seen = self._notice.look()
        self._saved_at_s = clock()

    def poll(self) -> StopOrSave:
        self._seen = self._notice.look()
        is_time = self._interval_s is not None and self._clock() - self._saved_at_s >= self._interval_s
        save = self._saves and (is_time or self._notice.pending() is not None)
        return StopOrSave(stop=bool(self._interrupt.number), save=save)

    def note_saved(self) -> None:
        """What was seen before the last step is answered; what came since then is not."""
        self._notice.answer(self._seen)
        self._saved_at_s = self._clock()
