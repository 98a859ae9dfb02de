"""Old pods that stay beyond their grace."""

from holdfast.trainingjob.decide.liveness import OVERDUE_CHECK_EVERY_S, OVERDUE_S, next_overdue, overdue
from tests.trainingjobs import at, deleted, running, worker


def test_who_stays_beyond_its_grace_is_looked_after_and_who_has_ended_is_not() -> None:
    leaving = deleted(running(0, node="a"), asked=0, grace_s=5)
    assert overdue([leaving], at(5 + OVERDUE_S - 1)) == ()
    assert overdue([leaving], at(5 + OVERDUE_S)) == (leaving,)
    assert next_overdue([leaving], at(0)) == at(5 + OVERDUE_S)
    assert next_overdue([leaving], at(60)) == at(60 + OVERDUE_CHECK_EVERY_S)
    for nobody in (
        running(0, node="a"),
        deleted(worker(0, {"phase": "Failed"}, node="a"), asked=0),
        deleted(running(0, node=""), asked=0),
    ):
        assert overdue([nobody], at(600)) == ()
        assert next_overdue([nobody], at(600)) is None
