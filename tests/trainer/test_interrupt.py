"""Signals, before and during the training."""

import os
import signal
from collections.abc import Iterator

import pytest

from holdfast.trainer.interrupt import SIGNALS, Interrupt
from holdfast.trainer.settings import Stopped


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    listening = Interrupt()
    listening.listen()
    yield listening
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_before_the_training_a_signal_is_obeyed_at_once(interrupt: Interrupt, number: int, code: int) -> None:
    with pytest.raises(Stopped) as stopped:
        os.kill(os.getpid(), number)
    assert stopped.value.exit_code == code
    assert interrupt.number == 0


@pytest.mark.parametrize("number", SIGNALS)
def test_during_the_training_the_first_signal_is_only_noted(interrupt: Interrupt, number: int) -> None:
    interrupt.after_step()
    os.kill(os.getpid(), number)
    assert interrupt.number == number


def test_a_second_signal_is_obeyed_at_once(interrupt: Interrupt) -> None:
    interrupt.after_step()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Stopped, match="stopped by SIGINT"):
        os.kill(os.getpid(), signal.SIGINT)
