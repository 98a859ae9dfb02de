"""The store against a naive model of itself, and what each of its answers means."""

from collections.abc import Iterable

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.api.meta import Key
from holdfast.runtime.informer import Store
from tests.runtime.things import A, B, Thing, cached

KEYS = st.builds(Key, st.sampled_from(["ns", "other"]), st.sampled_from(["a", "b", "c"]))
COLOURS = st.sampled_from(["red", "green", "blue"])


def by_colour(thing: Thing) -> Iterable[str]:
    return thing.metadata.labels.values()


def by_parity(thing: Thing) -> Iterable[str]:
    return ("even" if thing.spec.size % 2 == 0 else "odd",)


class StoreAgainstDict(RuleBasedStateMachine):
    """A store answers as a plain dict would that is searched from end to end each time."""

    @initialize()
    def begin(self) -> None:
        self.store: Store[Thing] = Store({"colour": by_colour})
        self.model: dict[Key, Thing] = {}
        self.indexes = {"colour": by_colour}

    @rule(key=KEYS, size=st.integers(0, 9), colours=st.sets(COLOURS))
    def put(self, key: Key, size: int, colours: set[str]) -> None:
        obj = cached(key, size=size, **{colour: colour for colour in colours})
        assert self.store.put(obj) == self.model.get(key)
        self.model[key] = obj

    @rule(key=KEYS)
    def remove(self, key: Key) -> None:
        assert self.store.remove(key) == self.model.pop(key, None)

    @rule()
    def index_late(self) -> None:
        self.store.index("parity", by_parity)
        self.indexes["parity"] = by_parity

    @invariant()
    def the_same_objects(self) -> None:
        assert {obj.metadata.key: obj for obj in self.store} == self.model
        for namespace in ("", "ns", "other", "none"):
            wanted = {key for key in self.model if namespace in ("", key.namespace)}
            assert {obj.metadata.key for obj in self.store.list(namespace)} == set(self.store.keys(namespace)) == wanted

    @invariant()
    def the_same_index(self) -> None:
        for name, indexer in self.indexes.items():
            for value in ("red", "green", "blue", "even", "odd"):
                wanted = [obj for obj in self.model.values() if value in indexer(obj)]
                assert sorted(map(repr, self.store.by(name, value))) == sorted(map(repr, wanted))


TestStoreAgainstDict = StoreAgainstDict.TestCase


def test_an_empty_store_has_nothing_and_has_come_nowhere() -> None:
    store: Store[Thing] = Store({"colour": by_colour})
    assert store.get(A) is None
    assert store.by("colour", "red") == []
    assert store.resource_version() == store.resource_version("ns") == ""


def test_an_index_that_nobody_declared_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        Store[Thing]().by("colour", "red")


def test_two_users_share_an_index_of_one_meaning() -> None:
    store: Store[Thing] = Store({"colour": by_colour})
    store.put(cached(A, red="red"))
    store.index("colour", by_colour)
    assert [obj.metadata.key for obj in store.by("colour", "red")] == [A]


def test_one_name_for_two_indexes_is_refused() -> None:
    store: Store[Thing] = Store({"colour": by_colour})
    with pytest.raises(ValueError, match="'colour' is there already"):
        store.index("colour", by_parity)


def test_an_index_that_raises_leaves_the_store_as_it_was() -> None:
    def picky(thing: Thing) -> Iterable[str]:
        return (str(1 // thing.spec.size),)

    store: Store[Thing] = Store({"colour": by_colour, "picky": picky})
    good = cached(A, size=1, red="red")
    store.put(good)
    with pytest.raises(ZeroDivisionError):
        store.put(cached(A, size=0, blue="blue"))
    assert store.get(A) is good
    assert store.by("colour", "red") == store.by("picky", "1") == [good]
    assert store.by("colour", "blue") == []


def test_each_namespace_has_its_own_version() -> None:
    store: Store[Thing] = Store()
    store.set_resource_version("7", "ns")
    store.set_resource_version("5", "other")
    assert (store.resource_version("ns"), store.resource_version("other")) == ("7", "5")
    assert store.resource_version("unwatched") == ""


def test_a_watch_of_all_namespaces_speaks_for_each() -> None:
    store: Store[Thing] = Store()
    store.set_resource_version("7")
    assert store.resource_version() == store.resource_version("ns") == "7"


def test_what_was_read_stays_what_it_was() -> None:
    store: Store[Thing] = Store()
    store.put(cached(A, size=1))
    store.put(cached(B))
    before = store.list()
    store.put(cached(A, size=2))
    store.remove(B)
    assert [obj.spec.size for obj in before] == [1, 0]
