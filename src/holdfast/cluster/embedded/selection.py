"""Which objects a list or a watch is about."""

from holdfast.cluster.embedded.kind import ServedKind
from holdfast.cluster.embedded.selectors import field_selector, label_selector
from holdfast.cluster.embedded.stored import StoredObject, StoredWrite, stored, value_at
from holdfast.cluster.protocol import Change


class WatchFilter:
    def __init__(self, kind: ServedKind, namespace: str, labels: str, fields: str) -> None:
        self._namespace = namespace
        self._labels = label_selector(labels)
        self._fields = field_selector(fields, kind.special.fields) if fields else None

    def matches(self, each: StoredObject) -> bool:
        if self._namespace and each.meta.namespace != self._namespace:
            return False
        return self._labels(each.meta.labels) and self._fields_hold(each)

    def visible_event(self, write: StoredWrite) -> StoredWrite | None:
        """The write as a watcher of this selection sees it; None when it does not concern it."""
        was = write.old is not None and self.matches(write.old)
        now = write.change is not Change.DELETED and self.matches(write.new)
        if write.change is Change.DELETED:
            return write if was else None
        if was and not now and write.old is not None:
            # As it was when it was last in the selection, at the version at which it left.
            last = stored(write.old.resource, write.old.json(), write.version)
            return StoredWrite(change=Change.DELETED, old=write.old, new=last)
        if not now:
            return None
        return StoredWrite(change=Change.MODIFIED if was else Change.ADDED, old=write.old, new=write.new)

    def _fields_hold(self, each: StoredObject) -> bool:
        if self._fields is None:
            return True
        document = each.json()
        return self._fields(lambda path: value_at(document, path))
