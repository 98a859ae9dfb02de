import msgspec
import pytest

from holdfast.api.core.selectors import Taint, Toleration
from holdfast.cluster.protocol import JSON
from holdfast.scheduling.constraints import find_toleration, tolerates

TAINT = Taint(key="gpu", value="present", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "value": "present"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "absent"}, False),
        ({"key": "gpu", "operator": "", "value": "present"}, True),
        ({"key": "cpu", "operator": "Exists"}, False),
        ({"value": "present"}, False),
        ({"key": "gpu", "operator": "Gt", "value": "1"}, False),
    ],
)
def test_a_toleration_covers_a_taint(toleration: JSON, covers: bool) -> None:
    assert tolerates(msgspec.convert(toleration, Toleration), TAINT) is covers


def test_the_first_toleration_that_covers_is_the_one() -> None:
    first, second = Toleration(key="gpu", operator="Exists"), Toleration(operator="Exists")
    assert find_toleration((Toleration(key="x"), first, second), TAINT) is first
    assert find_toleration((Toleration(key="x"),), TAINT) is None
