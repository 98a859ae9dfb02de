"""The checkpoints of a job: what a CheckpointBackup asks for, which checkpoint is the newest, and which are deleted."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.schema.validation import validate_object
from holdfast.checkpoints.images.errors import InvalidImageReference
from holdfast.checkpoints.images.reference import parse_reference, parse_run_tag
from holdfast.spotinstancejob.images import (
    CheckpointImages,
    SavedImage,
    backup_number,
    before,
    checkpoint_backup,
    checkpoint_of,
    checkpoints_in_registry,
    job_repository,
    newest,
    old_backups,
    old_checkpoints,
    status_image,
    tag_prefixes,
)
from tests.spotinstancejob.jobs import (
    CPU_CONTAINER,
    GPU_CONTAINER,
    OTHER_UID,
    REPOSITORY,
    digest,
    finished_backup,
    image,
    owned_image,
    replica_pod,
    spot_job,
    tag,
)
from tests.trainingjobs import UID, at, stamp

NUMBERS = st.lists(st.integers(1, 30), min_size=1, max_size=12, unique=True)


def saved(number: int, replica: int = 0, *containers: str, is_whole: bool = True) -> CheckpointImages:
    return CheckpointImages(
        number=number,
        replica=replica,
        mode="container",
        images=tuple(
            SavedImage(container=name, image=image(number, replica, name), digest=digest(number, name))
            for name in containers or ("training",)
        ),
        taken_at=stamp(number),
        is_whole=is_whole,
    )


# The CheckpointBackup.


def test_a_checkpoint_names_pod_job_repository_and_every_image() -> None:
    job = spot_job(GPU_CONTAINER, {"name": "logger", "image": "x"})
    body = checkpoint_backup(job, replica=1, number=12, pod=replica_pod(1, attempt=3), mode="container", now=at(5))
    assert body["metadata"]["name"] == "bert-r1-c12"
    assert body["metadata"]["namespace"] == "ml"
    assert body["metadata"]["labels"] == {
        "holdfast.dev/spot-job": "bert",
        "holdfast.dev/replica": "1",
        "holdfast.dev/attempt": "3",
        "app.kubernetes.io/managed-by": "holdfast",
    }
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("SpotInstanceJob", UID, True)
    assert body["spec"] == {
        "schedule": "immediately",
        "podRef": {"name": "bert-r1-3-abcde", "namespace": "ml"},
        "resourceRef": {
            "apiVersion": "training.training.dcnlab.com/v1alpha1",
            "kind": "SpotInstanceJob",
            "name": "bert",
            "namespace": "ml",
        },
        "registry": {"url": "registry.example.com", "repository": "team/checkpoints"},
        "containers": [
            {"name": "training", "image": f"{REPOSITORY}:{UID}-r1-training-000012-20260101T000005Z"},
            {"name": "logger", "image": f"{REPOSITORY}:{UID}-r1-logger-000012-20260101T000005Z"},
        ],
        "mode": "container",
        "timeoutSeconds": 600,
        "retain": 0,
    }


@pytest.mark.parametrize(
    ("checkpoints", "expected"),
    [
        ({}, None),
        ({"checkpointRepoCredentialRef": {"name": "push"}}, {"name": "push", "namespace": "ml"}),
        (
            {"checkpointRepoCredentialRef": {"name": "push", "namespace": "shared"}},
            {"name": "push", "namespace": "shared"},
        ),
    ],
)
def test_the_repositorys_credential_is_the_jobs(checkpoints: dict[str, Any], expected: dict[str, Any] | None) -> None:
    job = spot_job(checkpoints=checkpoints)
    body = checkpoint_backup(job, replica=0, number=1, pod=replica_pod(0), mode="application", now=at(0))
    assert body["spec"]["registry"].get("secretRef") == expected


def test_in_application_mode_one_image_stands_for_the_replica() -> None:
    job = spot_job({"name": "logger", "image": "x"}, GPU_CONTAINER)
    body = checkpoint_backup(job, replica=0, number=1, pod=replica_pod(0), mode="application", now=at(0))
    assert [each["name"] for each in body["spec"]["containers"]] == ["training"]


@pytest.mark.parametrize("mode", ["container", "application"])
@pytest.mark.parametrize("name", ["m", "m" * 63])
@pytest.mark.parametrize("repository", [REPOSITORY, "127.0.0.1:5000/checkpoints", "gcr.io/my-project/checkpoints"])
def test_a_checkpoint_is_a_valid_checkpointbackup(mode: Any, name: str, repository: str) -> None:
    job = spot_job({**GPU_CONTAINER, "name": name}, checkpoints={"checkpointImageRepo": repository})
    body = checkpoint_backup(job, replica=31, number=10**6, pod=replica_pod(31), mode=mode, now=at(0))
    validate_object(msgspec.json.decode(msgspec.json.encode(body)))


@pytest.mark.parametrize(
    ("written", "host", "repository"),
    [
        ("gcr.io/my-project/checkpoints", "gcr.io", "my-project/checkpoints"),
        ("europe-west4-docker.pkg.dev/p/r/i", "europe-west4-docker.pkg.dev", "p/r/i"),
        ("localhost:5000/c", "localhost:5000", "c"),
        ("localhost/c", "localhost", "c"),
    ],
)
def test_the_repository_is_split_into_host_and_path(written: str, host: str, repository: str) -> None:
    found = job_repository(spot_job(checkpoints={"checkpointImageRepo": written}))
    assert (found.host, found.repository, found.tag) == (host, repository, "")


@pytest.mark.parametrize("written", ["team/checkpoints", "gcr.io/My-Project/checkpoints", "gcr.io/a//b"])
def test_a_repository_that_no_registry_can_have_is_told(written: str) -> None:
    with pytest.raises(InvalidImageReference, match="write"):
        job_repository(spot_job(checkpoints={"checkpointImageRepo": written}))


@given(st.integers(0, 31), st.integers(1, 10**6), st.from_regex(r"\A[a-z]([-a-z0-9]{0,61}[a-z0-9])?\Z"))
def test_every_tag_carries_the_uid_and_belongs_to_the_job(replica: int, number: int, container: str) -> None:
    job = spot_job({**GPU_CONTAINER, "name": container})
    body = checkpoint_backup(job, replica=replica, number=number, pod=replica_pod(replica), mode="container", now=at(0))
    written = parse_reference(body["spec"]["containers"][0]["image"]).tag
    found = parse_run_tag(written)
    assert found is not None
    assert found.run == number
    assert written.startswith(UID)
    assert found.prefix in tag_prefixes(job)


# What a finished CheckpointBackup has made.


def test_a_finished_backup_is_a_checkpoint() -> None:
    found = checkpoint_of(spot_job(), finished_backup(7, 1))
    assert found == structs.replace(saved(7, 1), mode="application")


@pytest.mark.parametrize(
    "backup",
    [
        pytest.param(finished_backup(7, phase="ImagePushing"), id="under way"),
        pytest.param(finished_backup(7, phase="Failed", built=()), id="failed"),
        pytest.param(
            finished_backup(7, containers=("a", "b"), built=("a",), phase="CompletedWithError"), id="one image missing"
        ),
        pytest.param(finished_backup(7, owner=OTHER_UID), id="of another job"),
        pytest.param(finished_backup(7, name="bert-by-hand"), id="made by a user"),
        pytest.param(finished_backup(7, name="bert-r0-c7-2"), id="of another name"),
        pytest.param(structs.replace(finished_backup(7), status=None), id="not begun"),
    ],
)
def test_what_is_not_wholly_pushed_by_this_job_is_no_checkpoint(backup: Any) -> None:
    assert checkpoint_of(spot_job(), backup) is None


def test_a_run_that_failed_after_its_images_were_pushed_is_a_checkpoint() -> None:
    assert checkpoint_of(spot_job(), finished_backup(7, phase="CompletedWithError")) is not None


def test_an_image_without_a_digest_is_known_by_its_tag() -> None:
    """Agents of others need not tell it."""
    one = SavedImage(container="main", image="gcr.io/p/c:tag")
    assert (one.by_digest, one.with_digest) == ("gcr.io/p/c:tag", "gcr.io/p/c:tag")


def test_status_names_the_image_by_tag_and_digest_and_pods_by_digest_alone() -> None:
    found = saved(7)
    assert status_image(spot_job(), found) == f"{image(7)}@{digest(7)}"
    assert found.images[0].by_digest == f"{REPOSITORY}@{digest(7)}"


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ((CPU_CONTAINER, GPU_CONTAINER), "training"),
        ((CPU_CONTAINER, {"name": "other", "image": "x"}), "main"),
        (({**CPU_CONTAINER, "resources": {"limits": {"nvidia.com/gpu": "0"}}}, GPU_CONTAINER), "training"),
        (({**CPU_CONTAINER, "resources": {"limits": {"nvidia.com/gpu": "2"}}}, GPU_CONTAINER), "main"),
        (({**CPU_CONTAINER, "resources": None}, GPU_CONTAINER), "training"),
    ],
)
def test_status_names_the_image_of_the_first_container_with_a_gpu_else_of_the_first(
    containers: tuple[dict[str, Any], ...], expected: str
) -> None:
    everything = saved(3, 0, *(each["name"] for each in containers))
    assert f"-{expected}-" in status_image(spot_job(*containers), everything)


# What the repository holds.


def test_the_repository_tells_the_jobs_checkpoints_newest_first() -> None:
    labels = {"base-image": "x@sha256:1", "runtime": "containerd 2.2.9", "cpu-flags": "avx sse"}
    images = [owned_image(2, 1, labels=labels), owned_image(10, 0), owned_image(9, 1)]
    found = checkpoints_in_registry(spot_job(), images)
    assert [(each.number, each.replica, each.taken_at) for each in found] == [
        (10, 0, stamp(10)),
        (9, 1, stamp(9)),
        (2, 1, stamp(2)),
    ]
    assert found[2].images[0].restorable.base_image == "x@sha256:1"
    assert found[2].images[0].restorable.cpu_flags == {"avx", "sse"}
    assert found[0].images[0].image == image(10)


@pytest.mark.parametrize(
    "foreign",
    [
        pytest.param(owned_image(9, uid=OTHER_UID), id="of another job"),
        pytest.param(owned_image(9, uid=OTHER_UID, owner_uid=UID), id="with the tag of another job"),
        pytest.param(owned_image(9, owner_uid=OTHER_UID), id="with the labels of another job"),
        pytest.param(owned_image(9, labels={"replica": "1"}), id="of one replica, with the tag of another"),
        pytest.param(owned_image(9, labels={"replica": ""}), id="of no replica"),
        pytest.param(owned_image(9, labels={"replica": "9" * 5000}), id="of a replica that there can't be"),
        pytest.param(owned_image(9, tag="latest"), id="with a tag of another form"),
        pytest.param(owned_image(9, tag=tag(9, container="logger")), id="of one container, with the tag of another"),
    ],
)
def test_an_image_that_this_job_has_not_asked_for_is_none_of_its_checkpoints(foreign: Any) -> None:
    job = spot_job()
    assert [each.number for each in checkpoints_in_registry(job, [foreign, owned_image(4)])] == [4]


def test_a_checkpoint_that_lacks_a_container_is_never_the_newest() -> None:
    job = spot_job(GPU_CONTAINER, {"name": "logger", "image": "x"})
    images = [
        owned_image(1, 0, "training", mode="container"),
        owned_image(1, 0, "logger", mode="container"),
        owned_image(2, 0, "training", mode="container"),
    ]
    found = checkpoints_in_registry(job, images)
    assert [(each.number, each.is_whole) for each in found] == [(2, False), (1, True)]
    chosen = newest(found)
    assert chosen is not None
    assert chosen.number == 1


# Which of them.


@given(NUMBERS)
def test_the_newest_has_the_highest_number_whatever_the_order(numbers: list[int]) -> None:
    found = newest([saved(number, number % 2) for number in numbers])
    assert found is not None
    assert found.number == max(numbers)


def test_there_is_no_newest_of_nothing() -> None:
    assert newest([]) is None
    assert newest([saved(1, is_whole=False)]) is None


@pytest.mark.parametrize(
    "name",
    [
        f"{image(3)}@{digest(3)}",
        f"{REPOSITORY}@{digest(3)}",
        image(3),
    ],
)
def test_an_image_that_was_set_aside_is_passed_over_however_it_is_named(name: str) -> None:
    found = newest([saved(2), saved(3)], set_aside=[name])
    assert found == saved(2)
    assert before([saved(1), saved(2), saved(3)], name) == saved(2)


def test_a_replica_goes_one_image_back_again_and_again() -> None:
    everything, seen, current = [saved(number) for number in (4, 1, 9, 7)], [], saved(9)
    while found := before(everything, status_image(spot_job(), current)):
        seen.append(found.number)
        current = found
    assert seen == [7, 4, 1]


def test_before_an_image_that_is_deleted_are_those_of_lower_numbers() -> None:
    assert before([saved(1), saved(4)], image(3)) == saved(1)
    assert before([saved(4)], image(3)) is None


# Retention.


@pytest.mark.parametrize(
    ("numbers", "retain", "expected"),
    [
        ([1, 2, 3, 4, 5], 3, [1, 2]),
        ([1, 2, 3], 3, []),
        ([1], 1, []),
        ([], 1, []),
        ([5, 9, 7], 1, [5, 7]),
    ],
)
def test_the_newest_stay(numbers: list[int], retain: int, expected: list[int]) -> None:
    assert [each.number for each in old_checkpoints([saved(n) for n in numbers], retain)] == expected


def test_what_failed_to_restore_or_is_not_whole_pushes_out_nothing() -> None:
    everything = [saved(1), saved(2), saved(3, is_whole=False), saved(4), saved(5)]
    bad = [f"{image(4)}@{digest(4)}", image(5)]
    assert [each.number for each in old_checkpoints(everything, 1, set_aside=bad)] == [1]
    assert old_checkpoints(everything, 2, set_aside=bad) == ()


def test_an_image_that_a_restore_uses_stays() -> None:
    everything = [saved(number) for number in (1, 2, 3, 4)]
    found = old_checkpoints(everything, 1, in_use=[f"{image(2)}@{digest(2)}"])
    assert [each.number for each in found] == [1, 3]


def test_an_image_whose_digest_a_kept_tag_shares_stays() -> None:
    twin = structs.replace(saved(1), images=(SavedImage(container="training", image=image(1), digest=digest(4)),))
    assert [each.number for each in old_checkpoints([twin, saved(2), saved(4)], 1)] == [2]


@given(NUMBERS, st.integers(1, 5), st.sets(st.integers(1, 30)), st.sets(st.integers(1, 30)))
def test_retention_always_leaves_something_to_go_on_from(
    numbers: list[int], retain: int, bad: set[int], used: set[int]
) -> None:
    everything = [saved(number) for number in numbers]
    set_aside, in_use = [image(number) for number in bad], [image(number) for number in used]
    gone = old_checkpoints(everything, retain, in_use, set_aside)
    left = [each for each in everything if each not in gone]
    assert newest(left, set_aside) == newest(everything, set_aside)
    assert not {each.number for each in gone} & used
    valid = [each for each in left if each.number not in bad]
    assert len(valid) >= min(retain, len(set(numbers) - bad))


def test_the_last_three_objects_stay() -> None:
    backups = [finished_backup(number, number % 2) for number in (5, 1, 4, 2, 3)]
    assert [each.metadata.name for each in old_backups(spot_job(), backups)] == ["bert-r1-c1", "bert-r0-c2"]


def test_objects_under_way_in_use_or_of_others_stay() -> None:
    backups = [
        finished_backup(1),
        finished_backup(2, phase="Checkpointing"),
        finished_backup(3),
        finished_backup(4, name="by-hand"),
        finished_backup(5, owner=OTHER_UID),
        *(finished_backup(number, phase="Failed", built=()) for number in (6, 7, 8)),
    ]
    job = spot_job()
    assert [backup_number(job, each) for each in backups] == [1, 2, 3, None, None, 6, 7, 8]
    assert [each.metadata.name for each in old_backups(job, backups)] == ["bert-r0-c1"], "3 is the last good one"
    assert old_backups(job, backups, in_use=["bert-r0-c1"]) == ()
