"""What is safe to repeat is repeated while the fault may pass, and no longer."""

from random import Random

import pytest

from holdfast.providers.gcp.http import HttpResponse, NoAnswer
from holdfast.providers.gcp.retries import Patience, persist, retry_after_s
from tests.runtime.virtual import now_s, virtual

OK = HttpResponse(status=200)
Step = HttpResponse | NoAnswer
PATIENCE = Patience(attempts=3, first_pause_s=1.0, longest_pause_s=30.0)


class Script:
    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.asked_s: list[float] = []

    async def attempt(self) -> HttpResponse:
        self.asked_s.append(now_s())
        step = self.steps.pop(0)
        if isinstance(step, NoAnswer):
            raise step
        return step

    async def run(self) -> HttpResponse:
        return await persist(self.attempt, Random(0), PATIENCE)


def answer(status: int, retry_after: str = "") -> HttpResponse:
    return HttpResponse(status=status, headers={"Retry-After": retry_after} if retry_after else {})


@pytest.mark.parametrize("status", [200, 204, 400, 401, 403, 404, 409, 412, 429, 501])
def test_an_answer_that_will_not_change_is_the_last(status: int) -> None:
    @virtual
    async def run() -> None:
        script = Script(answer(status))
        assert (await script.run()).status == status

    run()


@pytest.mark.parametrize("fault", [answer(500), answer(502), answer(503), answer(504), answer(408), NoAnswer("lost")])
def test_a_fault_that_passes_is_waited_out(fault: Step) -> None:
    @virtual
    async def run() -> None:
        script = Script(fault, fault, OK)
        assert await script.run() == OK
        first, second, third = script.asked_s
        assert 0.5 <= second - first <= 1.0
        assert 1.0 <= third - second <= 2.0

    run()


@virtual
async def test_after_the_last_attempt_the_last_word_counts() -> None:
    assert (await Script(answer(503), answer(503), answer(502)).run()).status == 502
    with pytest.raises(NoAnswer, match="third"):
        await Script(NoAnswer("first"), answer(503), NoAnswer("third")).run()


@virtual
async def test_it_is_never_asked_earlier_than_the_server_wants() -> None:
    script = Script(answer(503, "20"), OK)
    await script.run()
    assert script.asked_s[1] - script.asked_s[0] == 20.0


@virtual
async def test_a_long_wait_is_left_to_the_caller() -> None:
    script = Script(answer(503, "31"))
    assert (await script.run()).status == 503


@pytest.mark.parametrize(
    ("header", "seconds"), [("", None), ("7", 7.0), (" 7 ", 7.0), ("-1", None), ("soon", None), ("1.5", None)]
)
def test_what_retry_after_says(header: str, seconds: float | None) -> None:
    assert retry_after_s(HttpResponse(status=503, headers={"Retry-After": header})) == seconds
    assert retry_after_s(answer(503)) is None
