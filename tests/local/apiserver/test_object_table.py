"""Staging and filing: nobody sees what is not on disk, and a failure leaves no trace."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from math import inf

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import ServerError
from holdfast.cluster.protocol import JSON, Change
from holdfast.local.apiserver.objects import ObjectRef, ObjectTable
from holdfast.local.apiserver.storage import Row, Storage, StoredWrite

KIND = "configmaps"


class Disk(Storage):
    """A database in memory that counts its commits and can be told to be full."""

    def __init__(self) -> None:
        super().__init__(None)
        self.full_after: float = inf
        self.refused = asyncio.Event()
        self.commits: list[int] = []

    def commit(self, version: int, rows: Iterable[Row]) -> None:
        if version > self.full_after:
            self.refused.set()
            raise ServerError("the disk is full")
        self.commits.append(version)
        super().commit(version, rows)


class ObjectTableLab:
    """A ledger, its disk, and what it told."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.told: list[StoredWrite] = []
        self.listener: Callable[[Sequence[StoredWrite]], None] = self.told.extend
        self.ledger = ObjectTable(self.disk, self.tell)

    def tell(self, writes: Sequence[StoredWrite]) -> None:
        self.listener(writes)

    def steps(self) -> list[tuple[Change, str, int]]:
        return [(write.change, write.new.meta.name, write.version) for write in self.told]


@pytest.fixture
def desk() -> ObjectTableLab:
    return ObjectTableLab()


def document(name: str, uid: str = "", owners: Sequence[str] = (), **data: str) -> JSON:
    references = [{"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": owner} for owner in owners]
    metadata = {"name": name, "namespace": "default", "uid": uid or name, "ownerReferences": references}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def place(name: str) -> ObjectRef:
    return ObjectRef(KIND, Key("default", name))


async def test_readers_and_watchers_see_a_write_only_when_it_is_filed(desk: ObjectTableLab) -> None:
    desk.ledger.put(KIND, document("one"))
    assert desk.ledger.find(place("one")) is not None
    assert desk.ledger.committed(place("one")) is None
    assert (desk.told, desk.ledger.version) == ([], 0)
    await desk.ledger.flushed()
    assert desk.ledger.committed(place("one")) is not None
    assert desk.steps() == [(Change.ADDED, "one", 1)]
    assert desk.ledger.version == 1


async def test_writes_of_one_turn_are_stored_together_and_watched_in_order(desk: ObjectTableLab) -> None:
    one = desk.ledger.put(KIND, document("one"))
    desk.ledger.put(KIND, document("two"))
    desk.ledger.put(KIND, document("one", k="v"))
    await desk.ledger.flushed()
    assert desk.disk.commits == [3]
    assert desk.steps() == [(Change.ADDED, "one", 1), (Change.ADDED, "two", 2), (Change.MODIFIED, "one", 3)]
    assert desk.told[2].old == one


async def test_an_object_made_and_removed_in_one_turn_leaves_only_its_history(desk: ObjectTableLab) -> None:
    desk.ledger.remove(desk.ledger.put(KIND, document("one")))
    assert desk.ledger.find(place("one")) is None
    await desk.ledger.flushed()
    assert desk.steps() == [(Change.ADDED, "one", 1), (Change.DELETED, "one", 2)]
    assert list(desk.ledger.list_committed(KIND)) == []
    assert desk.disk.load() == (2, [])


async def test_a_removal_carries_the_last_state_at_its_own_version(desk: ObjectTableLab) -> None:
    one = desk.ledger.put(KIND, document("one", k="v"))
    await desk.ledger.flushed()
    desk.ledger.remove(one)
    await desk.ledger.flushed()
    last = desk.told[-1].new
    assert (last.json()["data"], last.meta.resource_version, last.version) == ({"k": "v"}, "2", 2)


async def test_a_failed_turn_is_refused_to_every_writer_and_leaves_no_trace(desk: ObjectTableLab) -> None:
    kept = desk.ledger.put(KIND, document("kept"))
    await desk.ledger.flushed()
    desk.disk.full_after = 1

    async def write(name: str) -> None:
        desk.ledger.put(KIND, document(name))
        await desk.ledger.flushed()

    async def remove() -> None:
        desk.ledger.remove(kept)
        await desk.ledger.flushed()

    answers = await asyncio.gather(write("lost"), remove(), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["the disk is full"] * 2
    assert desk.ledger.find(place("lost")) is None
    assert desk.ledger.find(place("kept")) == kept
    assert (desk.ledger.version, desk.steps()) == (1, [(Change.ADDED, "kept", 1)])
    desk.disk.full_after = inf
    assert desk.ledger.put(KIND, document("next")).version == 2
    await desk.ledger.flushed()


async def test_a_writer_that_gives_up_does_not_take_the_others_answer_along(desk: ObjectTableLab) -> None:
    async def write(name: str) -> str:
        desk.ledger.put(KIND, document(name))
        await desk.ledger.flushed()
        return name

    writers = [asyncio.create_task(write(name)) for name in ("one", "two")]
    await asyncio.sleep(0)
    writers[0].cancel()
    answers = await asyncio.gather(*writers, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1] == "two"
    assert desk.ledger.committed(place("one")) is not None


async def test_closing_files_what_is_staged() -> None:
    desk = ObjectTableLab()
    desk.ledger.put(KIND, document("one"))
    desk.ledger.close()
    assert desk.disk.commits == [1]


async def test_owners_and_dependents_are_found_by_uid(desk: ObjectTableLab) -> None:
    desk.ledger.put(KIND, document("owner", uid="u1"))
    desk.ledger.put(KIND, document("b", owners=["u1"]))
    child = desk.ledger.put(KIND, document("a", owners=["u1", "u2"]))
    await desk.ledger.flushed()
    assert [each.meta.name for each in desk.ledger.dependents("u1")] == ["a", "b"]
    owner = desk.ledger.owner("u1")
    assert owner is not None
    assert owner.meta.name == "owner"
    desk.ledger.put(KIND, {**child.json(), "metadata": document("a", uid=child.meta.uid)["metadata"]})
    desk.ledger.remove(owner)
    await desk.ledger.flushed()
    assert [each.meta.name for each in desk.ledger.dependents("u1")] == ["b"]
    assert desk.ledger.dependents("u2") == []
    assert desk.ledger.owner("u1") is None


async def test_a_ledger_finds_everything_again_in_the_same_storage(desk: ObjectTableLab) -> None:
    made = desk.ledger.put(KIND, document("one", uid="u1", owners=["u0"]))
    await desk.ledger.flushed()
    again = ObjectTable(desk.disk, desk.tell)
    assert again.find(place("one")) == made
    assert again.owner("u1") == made
    assert again.dependents("u0") == [made]
    assert again.version == 1


async def test_the_view_of_the_next_write_holds_what_is_staged(desk: ObjectTableLab) -> None:
    filed = desk.ledger.put(KIND, document("filed"))
    gone = desk.ledger.put(KIND, document("gone"))
    await desk.ledger.flushed()
    desk.ledger.remove(gone)
    desk.ledger.put("pods", document("new"))
    changed = desk.ledger.put(KIND, document("filed", k="v"))
    assert list(desk.ledger.list_staged(KIND)) == [changed]
    assert list(desk.ledger.list_committed(KIND)) == [filed, gone]
    assert desk.ledger.resources() == {KIND, "pods"}
    await desk.ledger.flushed()
