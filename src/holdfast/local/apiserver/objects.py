"""All objects in memory, the only way to change them, and the watch cache.

A write is staged, where later writes see it, and committed in one transaction with all other writes of the same
iteration of the event loop. No client gets a response, and no reader or watcher sees a change, before the transaction
is on disk. When the transaction fails, the staged writes are dropped, and memory is as before.
"""

import asyncio
import re
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from holdfast.api.meta import Key
from holdfast.cluster.errors import Expired, ServerError
from holdfast.cluster.protocol import JSON, Change
from holdfast.local.apiserver.storage import Row, Storage, StoredObject, StoredWrite, loaded, stored


class ObjectRef(NamedTuple):
    """A reference to a stored object."""

    resource: str
    key: Key


class ObjectTable:
    def __init__(self, storage: Storage, published: Callable[[Sequence[StoredWrite]], None]) -> None:
        self._storage = storage
        self._published = published
        self._tables: dict[str, dict[Key, StoredObject]] = defaultdict(dict)
        self._by_uid: dict[str, StoredObject] = {}
        self._dependents: dict[str, set[ObjectRef]] = defaultdict(set)
        self._staged: dict[ObjectRef, StoredObject | None] = {}
        self._writes: list[StoredWrite] = []
        self._commit_done: asyncio.Future[str] | None = None
        self.version, rows = storage.load()
        for row in rows:
            assert row.body is not None
            self._index(loaded(row.resource, row.body))

    def find(self, ref: ObjectRef) -> StoredObject | None:
        """The object as the next write sees it, with staged changes."""
        return self._staged[ref] if ref in self._staged else self.committed(ref)

    def list_staged(self, resource: str) -> Iterator[StoredObject]:
        """All objects of a kind as the next write sees them, with staged changes."""
        yield from (each for each in self.list_committed(resource) if ObjectRef(resource, each.key) not in self._staged)
        yield from (each for ref, each in self._staged.items() if each is not None and ref.resource == resource)

    def resources(self) -> set[str]:
        """The kinds that have objects, with staged changes."""
        staged = {ref.resource for ref, each in self._staged.items() if each is not None}
        return staged.union(name for name, table in self._tables.items() if table)

    def committed(self, ref: ObjectRef) -> StoredObject | None:
        """The object as readers see it, without staged changes."""
        return self._tables[ref.resource].get(ref.key)

    def list_committed(self, resource: str) -> Iterable[StoredObject]:
        return self._tables[resource].values()

    def owner(self, uid: str) -> StoredObject | None:
        """The committed object with that uid."""
        return self._by_uid.get(uid)

    def dependents(self, uid: str) -> list[StoredObject]:
        """The committed objects that name that uid as an owner, in a fixed order."""
        return [self._tables[ref.resource][ref.key] for ref in sorted(self._dependents.get(uid, ()))]

    def put(self, resource: str, draft: JSON) -> StoredObject:
        """Stage the object's new state."""
        new = stored(resource, draft, self.version + len(self._writes) + 1)
        ref = ObjectRef(resource, new.key)
        old = self.find(ref)
        self._stage(ref, new, StoredWrite(change=Change.MODIFIED if old else Change.ADDED, old=old, new=new))
        return new

    def remove(self, old: StoredObject) -> StoredObject:
        """Stage the removal of the object; returns its last state, at the version of the removal."""
        last = stored(old.resource, old.json(), self.version + len(self._writes) + 1)
        self._stage(ObjectRef(old.resource, old.key), None, StoredWrite(change=Change.DELETED, old=old, new=last))
        return last

    async def flushed(self) -> None:
        """Return when all staged writes are on disk; raise `ServerError` when the transaction fails."""
        if self._commit_done is None:
            return
        # A cancelled caller must not cancel the result of the others.
        if problem := await asyncio.shield(self._commit_done):
            raise ServerError(problem)

    def close(self) -> None:
        """Commit the staged writes, and close the database."""
        self._commit()
        self._storage.close()

    def _stage(self, ref: ObjectRef, new: StoredObject | None, write: StoredWrite) -> None:
        self._staged[ref] = new
        self._writes.append(write)
        if self._commit_done is None:
            loop = asyncio.get_running_loop()
            self._commit_done = loop.create_future()
            loop.call_soon(self._commit)

    def _commit(self) -> None:
        if self._commit_done is None:
            return
        done, writes, staged = self._commit_done, self._writes, self._staged
        self._commit_done, self._writes, self._staged = None, [], {}
        try:
            rows = [Row(ref.resource, *ref.key, new.body if new else None) for ref, new in staged.items()]
            self._storage.commit(writes[-1].version, rows)
        except ServerError as error:
            done.set_result(str(error))
            return
        self.version = writes[-1].version
        for write in writes:
            self._apply(write)
        self._published(writes)
        done.set_result("")

    def _apply(self, write: StoredWrite) -> None:
        if write.old is not None:
            self._unindex(write.old)
        if write.change is not Change.DELETED:
            self._index(write.new)

    def _index(self, each: StoredObject) -> None:
        self._tables[each.resource][each.key] = each
        self._by_uid[each.meta.uid] = each
        for owner in each.meta.owner_references:
            self._dependents[owner.uid].add(ObjectRef(each.resource, each.key))

    def _unindex(self, each: StoredObject) -> None:
        del self._tables[each.resource][each.key]
        del self._by_uid[each.meta.uid]
        for owner in each.meta.owner_references:
            refs = self._dependents[owner.uid]
            refs.discard(ObjectRef(each.resource, each.key))
            if not refs:
                del self._dependents[owner.uid]


# The watch cache: the recent writes of each kind, for any number of watchers to read at their own pace.
#
# Watchers share one window of writes per kind instead of a buffer each. The stream of a watcher that falls behind the
# window ends; `Expired` then makes the watcher list again.


class _Log:
    """The window of one kind. Positions count all writes since the start, so that a reader's position stays valid."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.first = 0
        self.writes: deque[StoredWrite] = deque()
        self.grown = asyncio.Event()

    @property
    def end(self) -> int:
        return self.first + len(self.writes)

    def position_after(self, version: int) -> int:
        position = self.end
        for write in reversed(self.writes):
            if write.version <= version:
                break
            position -= 1
        return position

    def compact(self, size: int) -> None:
        while len(self.writes) > size:
            self.floor = self.writes.popleft().version
            self.first += 1


class WatchCache:
    def __init__(self, version: int, *, window: int, bookmark_s: float) -> None:
        self._window = window
        self._bookmark_s = bookmark_s
        self._logs: dict[str, _Log] = defaultdict(lambda: _Log(version))
        self._closed = False

    def append(self, writes: Iterable[StoredWrite]) -> None:
        for write in writes:
            log = self._logs[write.new.resource]
            log.writes.append(write)
            log.compact(self._window)
            log.grown.set()

    def compact(self, resource: str, version: int) -> None:
        """Versions of the kind before `version` can no longer be watched from."""
        log = self._logs[resource]
        log.compact(0)
        log.floor = version

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        for log in self._logs.values():
            log.grown.set()

    async def watch_from(self, resource: str, version: int) -> AsyncGenerator[StoredWrite | None, None]:
        """Every write to the kind after `version`, without end; None as a bookmark after a while without writes."""
        log = self._logs[resource]
        if version < log.floor:
            raise Expired(f"too old resource version: {version} ({log.floor})")
        position = log.position_after(version)
        bookmark_at = self._next_bookmark()
        while not self._closed and position >= log.first:
            if position < log.end:
                write = log.writes[position - log.first]
                position += 1
                if write.version > version:
                    yield write
            elif not await self._grows_before(bookmark_at, log):
                bookmark_at = self._next_bookmark()
                yield None

    def _next_bookmark(self) -> float:
        return asyncio.get_running_loop().time() + self._bookmark_s

    async def _grows_before(self, deadline: float, log: _Log) -> bool:
        log.grown.clear()
        try:
            async with asyncio.timeout_at(deadline):
                await log.grown.wait()
        except TimeoutError:
            return False
        return True


# The syntax of names, labels and annotations; each check returns the problems that it finds.


_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")

LABEL_LENGTH = 63
SUBDOMAIN_LENGTH = 253
# A generated name is the prefix, cut to fit a label, plus five characters from an alphabet that spells no words.
SUFFIX_LENGTH = 5
SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
PREFIX_LENGTH = LABEL_LENGTH - SUFFIX_LENGTH


def dns_label_problems(name: str) -> list[str]:
    return _length(name, LABEL_LENGTH) + _shape(
        name,
        _DNS_LABEL,
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
        "with an alphanumeric character (e.g. 'my-name')",
    )


def dns_1035_problems(name: str) -> list[str]:
    return _length(name, LABEL_LENGTH) + _shape(
        name,
        _DNS_1035,
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
        "character, and end with an alphanumeric character (e.g. 'my-name')",
    )


def dns_subdomain_problems(name: str) -> list[str]:
    return _length(name, SUBDOMAIN_LENGTH) + _shape(
        name,
        _DNS_SUBDOMAIN,
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
        "and end with an alphanumeric character (e.g. 'example.com')",
    )


def label_key_problems(key: str) -> list[str]:
    """A qualified name: an optional DNS prefix, a slash, and a name."""
    prefix, slash, name = key.rpartition("/")
    if slash and not prefix:
        return ["prefix part must be non-empty"]
    problems = [f"prefix part {problem}" for problem in dns_subdomain_problems(prefix)] if slash else []
    if not name:
        return [*problems, "name part must be non-empty"]
    shape = _shape(
        name,
        _QUALIFIED,
        "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
        "alphanumeric character (e.g. 'my.name')",
    )
    return problems + [f"name part {problem}" for problem in _length(name, LABEL_LENGTH)] + shape


def label_value_problems(value: str) -> list[str]:
    if not value:
        return []
    return _length(value, LABEL_LENGTH) + _shape(
        value,
        _QUALIFIED,
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start "
        "and end with an alphanumeric character (e.g. 'my-value')",
    )


def _length(text: str, limit: int) -> list[str]:
    return [f"must be no more than {limit} characters"] if len(text) > limit else []


def _shape(text: str, pattern: re.Pattern[str], problem: str) -> list[str]:
    return [] if pattern.fullmatch(text) else [problem]
