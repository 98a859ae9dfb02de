"""The examples get exactly the objects of the golden files; see golden.py for how these are written."""

import pytest
import yaml

from tests.trainingjob.objects.family import children, differences, fields
from tests.trainingjob.objects.golden import EXAMPLES, example, golden


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gets_just_these_objects(name: str) -> None:
    expected, made = list(yaml.safe_load_all(golden(name).read_text())), children(example(name))
    assert differences(fields(expected), fields(made)) == {}
    assert made == expected  # in this order too


def test_every_golden_file_belongs_to_an_example() -> None:
    assert {path.stem for path in golden("x").parent.iterdir()} == set(EXAMPLES)
