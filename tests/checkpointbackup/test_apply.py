"""What a sidecar is told to push: whose image it is, of which replica and attempt, and under which tag."""

import pytest
from msgspec import structs

from holdfast.api.meta import OwnerReference
from holdfast.checkpointbackup.apply import wanted_backup
from holdfast.checkpointbackup.snapshot import CheckpointBackupSnapshot
from tests.checkpointbackup.backups import BEGUN, backup, pod
from tests.trainingjobs import UID


@pytest.mark.parametrize(
    ("labels", "replica", "attempt"),
    [
        ({}, "", None),
        ({"batch.kubernetes.io/job-completion-index": "2", "holdfast.dev/attempt": "1"}, "2", 1),
        ({"holdfast.dev/replica": "1", "holdfast.dev/attempt": "4"}, "1", 4),
        ({"holdfast.dev/attempt": "x"}, "", None),
    ],
)
def test_an_image_tells_the_replica_and_attempt_of_its_pod(
    labels: dict[str, str], replica: str, attempt: int | None
) -> None:
    observed = CheckpointBackupSnapshot(
        backup=backup(status={**BEGUN, "mode": "application"}), pod=pod(metadata={"labels": labels})
    )
    wanted = wanted_backup(observed, ())
    assert (wanted.replica, wanted.attempt) == (replica, attempt)


def test_an_image_is_of_the_object_that_manages_the_backup() -> None:
    it = backup(status=BEGUN)
    wanted = wanted_backup(CheckpointBackupSnapshot(backup=it, pod=pod()), ())
    assert (wanted.owner_uid, wanted.owner_kind) == (UID, "CheckpointBackup")
    owner = OwnerReference(api_version="g/v1", kind="SpotInstanceJob", name="bert", uid="u1", controller=True)
    it = structs.replace(it, metadata=structs.replace(it.metadata, owner_references=(owner,)))
    wanted = wanted_backup(CheckpointBackupSnapshot(backup=it, pod=pod()), ())
    assert (wanted.owner_uid, wanted.owner_kind, wanted.owner_name) == ("u1", "SpotInstanceJob", "bert")
