"""A job's store and its volume, of any kind, with a way behind the store's back."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path

from holdfast.checkpoints.manifest import CheckpointManifest, CheckpointName
from holdfast.checkpoints.object_store import Bucket, ObjectStore
from holdfast.checkpoints.volume_store import VolumeStore
from tests.checkpoints.making import ABOUT, MODEL, save

_numbers = count(1)


class FolderBackend:
    """pvc and nfs: the training writes into the store itself."""

    def __init__(self, folder: Path) -> None:
        self.volume = folder / "job"
        self.volume.mkdir()
        self.store = VolumeStore(self.volume)

    def put(self, name: CheckpointName, files: Mapping[str, bytes] = MODEL) -> CheckpointManifest:
        return self.store.put(name, save(self.volume, name, files), ABOUT)

    def all_keys(self, below: str = "") -> set[str]:
        files = (path for path in (self.volume / below).rglob("*") if path.is_file())
        return {str(path.relative_to(self.volume)) for path in files}

    def read(self, key: str) -> bytes:
        return (self.volume / key).read_bytes()

    def write(self, key: str, content: bytes) -> None:
        (self.volume / key).parent.mkdir(parents=True, exist_ok=True)
        (self.volume / key).write_bytes(content)

    def remove(self, key: str) -> None:
        (self.volume / key).unlink()


class BucketBackend:
    """s3, gcs and azure: the training writes to a volume of its own."""

    def __init__(self, folder: Path, bucket: Bucket) -> None:
        self.volume = folder / "volume"
        self.volume.mkdir()
        self.bucket = bucket
        self.store = ObjectStore(bucket)

    def put(self, name: CheckpointName, files: Mapping[str, bytes] = MODEL) -> CheckpointManifest:
        return self.store.put(name, save(self.volume, name, files), ABOUT)

    def all_keys(self, below: str = "") -> set[str]:
        return {found.key for found in self.bucket.objects(below)}

    def read(self, key: str) -> bytes:
        content = self.bucket.read(key, 1 << 30)
        assert content is not None, f"there is no {key}"
        return content

    def write(self, key: str, content: bytes) -> None:
        self.bucket.put(key, content)

    def remove(self, key: str) -> None:
        self.bucket.delete([key])


StoreBackend = FolderBackend | BucketBackend


def fresh_prefix() -> str:
    """Of a job that no other test has."""
    return f"ml/job-{next(_numbers)}"
