"""The table of mutants keeps up with the sources and with the suite; and its runner tells the sound from the broken."""

import pytest

from .mutant import Mutant
from .mutants import MUTANTS, ROOT, SOURCES, SUITE, Useless, mutated, verdict

TEST = "test_conflicts.py::test_a_replacement_of_a_stale_version_is_refused"
WRITES = "holdfast/local/apiserver/writes.py"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.behaviour)
def test_a_mutant_changes_one_place_and_names_a_test(mutant: Mutant) -> None:
    text = (SOURCES / mutant.path).read_text()
    assert mutated(text, mutant) != text
    file, test = mutant.test.split("::")
    assert f"def {test}(" in (ROOT / SUITE / file).read_text()


@pytest.mark.parametrize("text", ["", "twice twice"])
def test_what_is_not_there_exactly_once_cannot_be_mutated(text: str) -> None:
    with pytest.raises(Useless, match="not once"):
        mutated(text, Mutant("any", "any.py", "twice", "once", "any.py::any"))


def test_a_fault_is_caught_and_a_harmless_change_survives() -> None:
    faulty = Mutant("conflicts", WRITES, "raise conflict(kind, old.meta.name)", "pass", TEST)
    harmless = Mutant("conflicts", WRITES, "NAME_ATTEMPTS = 8", "NAME_ATTEMPTS = 9", TEST)
    assert (verdict(faulty), verdict(harmless)) == ("caught", "survived")


@pytest.mark.parametrize(
    ("new", "test"),
    [("NAME_ATTEMPTS = ", TEST), ("raise RuntimeError", TEST), ("NAME_ATTEMPTS = 9", "test_conflicts.py::test_none")],
)
def test_a_mutant_that_no_test_was_run_on_is_no_catch(new: str, test: str) -> None:
    with pytest.raises(Useless, match="could not be tested"):
        verdict(Mutant("conflicts", WRITES, "NAME_ATTEMPTS = 8", new, test))
