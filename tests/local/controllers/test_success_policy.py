import pytest

from holdfast.cluster.protocol import JSON
from holdfast.local.controllers.job_policies import satisfied_rule
from tests.local.controllers.things import indexed_job

LEADER: JSON = {"succeededIndexes": "0"}
TWO: JSON = {"succeededCount": 2}
ONE_OF_THE_LAST: JSON = {"succeededIndexes": "3-4", "succeededCount": 1}


@pytest.mark.parametrize(
    ("rules", "completed", "number"),
    [
        ([], {0, 1, 2, 3, 4}, None),
        ([LEADER], set(), None),
        ([LEADER], {1, 2}, None),
        ([LEADER], {0, 2}, 0),
        ([TWO], {4}, None),
        ([TWO], {2, 4}, 0),
        ([ONE_OF_THE_LAST], {0, 1, 2}, None),
        ([ONE_OF_THE_LAST], {4}, 0),
        ([{"succeededIndexes": "0-1"}], {0}, None),
        ([{"succeededIndexes": "0-1"}], {0, 1}, 0),
        ([LEADER, TWO], {1, 2}, 1),
        ([LEADER, TWO], {0, 1, 2}, 0),
        ([{"succeededIndexes": "9"}], {0, 1, 2, 3, 4}, None),
    ],
)
def test_the_first_rule_that_holds_is_named(rules: list[JSON], completed: set[int], number: int | None) -> None:
    job = indexed_job(5, successPolicy={"rules": rules})
    assert satisfied_rule(job, frozenset(completed)) == number


def test_a_job_without_a_policy_has_no_rule() -> None:
    assert satisfied_rule(indexed_job(5), frozenset({0, 1, 2, 3, 4})) is None
