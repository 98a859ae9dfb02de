"""Random sequences of operations, the same in every run."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from .operations import Create, Delete, Guard, Operation, Patch, PatchStatus, Replace, Select

NAMES = st.sampled_from(["one", "two"])
SIZES = st.sampled_from([1, 2, 3, 101])
GUARDS = st.sampled_from([*[Guard.NONE] * 3, *[Guard.CURRENT] * 3, Guard.STALE, Guard.UID, Guard.FOREIGN])
VERSIONS = st.sampled_from([*[Guard.CURRENT] * 5, Guard.NONE, Guard.STALE, Guard.FOREIGN])
FINALIZERS = st.sampled_from([(), (), ("holdfast.dev/a",), ("holdfast.dev/b",), ("holdfast.dev/a", "holdfast.dev/b")])
VALUES = st.sampled_from(["x", "y"])
LABELS = st.dictionaries(st.sampled_from(["red", "green"]), VALUES, max_size=2)
CHANGES = st.dictionaries(st.sampled_from(["red", "green"]), st.none() | VALUES, max_size=2)

CREATES = st.builds(Create, NAMES, st.sampled_from([1, 2]), LABELS, FINALIZERS)
FIRST = st.builds(Create, st.just("one"), st.just(1), LABELS, FINALIZERS)
RELEASES = st.builds(Patch, NAMES, st.just(Guard.NONE), st.none(), st.just({}), st.just(()))
PATCHES = st.builds(Patch, NAMES, GUARDS, st.none() | SIZES, CHANGES, st.none() | FINALIZERS)
REPLACES = st.builds(Replace, NAMES, SIZES, VERSIONS, LABELS, FINALIZERS)
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Create, NAMES, SIZES, LABELS, FINALIZERS),
    *[CREATES] * 2,
    *[PATCHES] * 3,
    RELEASES,
    *[REPLACES] * 3,
    *[st.builds(PatchStatus, NAMES, st.sampled_from(["Ready", "Broken"]), GUARDS)] * 2,
    *[st.builds(Delete, NAMES, GUARDS)] * 2,
    st.builds(Select, st.sampled_from(["red", "green"])),
)


def _sequence(first: Create, others: list[Operation]) -> list[Operation]:
    return [first, *others]


SEQUENCES = st.builds(_sequence, FIRST, st.lists(OPERATIONS, min_size=15, max_size=40))


def drawn(examples: int) -> settings:
    """So many sequences. A failing one is not shrunk: each try costs a second, and the difference names the fault."""
    return settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=examples,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
