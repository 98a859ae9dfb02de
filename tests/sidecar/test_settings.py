"""What the operator tells a sidecar."""

from pathlib import Path

import pytest

from holdfast.sidecar.progress import NAMES
from holdfast.sidecar.settings import InvalidSidecarSetting, settings

LEAST = {
    "HOLDFAST_JOB": "digits",
    "HOLDFAST_NAMESPACE": "ml",
    "HOLDFAST_JOB_UID": "uid-1",
    "HOLDFAST_ATTEMPT": "2",
    "HOLDFAST_INDEX": "1",
}
KEEPING = {**LEAST, "CHECKPOINT_DIR": "/checkpoints/attempt-2", "RESUME_FROM": "/checkpoints/attempt-2.resume"}


def test_a_job_without_checkpoints_has_a_sidecar_too() -> None:
    found = settings(LEAST)
    assert (found.job, found.namespace, found.uid, found.attempt, found.index) == ("digits", "ml", "uid-1", 2, 1)
    assert found.checkpoints is None
    assert (found.workers, found.grace_s, found.report_s) == (1, 30.0, 5.0)
    assert found.metric_names == NAMES


def test_where_checkpoints_are_kept() -> None:
    place = settings(
        {**KEEPING, "HOLDFAST_STORE": "s3://b/p", "HOLDFAST_RETENTION": "5", "HOLDFAST_BEST_BY": "accuracy"}
    ).checkpoints
    assert place is not None
    assert (place.folder, place.resume_link) == (
        Path("/checkpoints/attempt-2"),
        Path("/checkpoints/attempt-2.resume"),
    )
    assert (place.store, place.keep, place.resume_from, place.best_by) == ("s3://b/p", 5, "", "accuracy")
    plain = settings(KEEPING).checkpoints
    assert plain is not None
    assert plain.best_by == "loss"


def test_what_the_sidecar_of_a_replica_is_told_besides() -> None:
    found = settings({**KEEPING, "HOLDFAST_RESUME_NEWEST": "true", "HOLDFAST_ANY_USER": "true"})
    assert found.checkpoints is not None
    assert (found.checkpoints.resume_newest, found.checkpoints.resume_exactly, found.any_user) == (True, False, True)
    back = settings({**KEEPING, "HOLDFAST_RESUME_EXACTLY": "true"}).checkpoints
    assert back is not None
    assert (back.resume_newest, back.resume_exactly) == (False, True)


def test_metrics_may_have_other_names() -> None:
    found = settings({**LEAST, "METRICS_PORT": "9000", "HOLDFAST_METRIC_NAMES": "loss=my_loss, val/acc=top1 ,"})
    assert found.metrics_port == 9000
    assert found.metric_names == {**NAMES, "loss": "my_loss", "val/acc": "top1"}


@pytest.mark.parametrize("name", LEAST)
def test_who_it_is_must_be_told(name: str) -> None:
    with pytest.raises(InvalidSidecarSetting, match=f"^{name} is "):
        settings({**LEAST, name: ""})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"HOLDFAST_INDEX": "-1"}, "HOLDFAST_INDEX is '-1'"),
        ({"HOLDFAST_INDEX": "٣"}, "HOLDFAST_INDEX is '.u0663'"),
        ({"HOLDFAST_WORKERS": "0"}, "from 1 to"),
        ({"HOLDFAST_RETENTION": "0"}, "from 1 to"),
        ({"HOLDFAST_BEST_BY": "speed"}, "HOLDFAST_BEST_BY is 'speed'"),
        ({"METRICS_PORT": "65536"}, "METRICS_PORT is '65536'"),
        ({"HOLDFAST_GRACE_SECONDS": "soon"}, "HOLDFAST_GRACE_SECONDS is 'soon'"),
        ({"CHECKPOINT_DIR": "/checkpoints/attempt-1"}, "the first ends with attempt-2"),
        ({"CHECKPOINT_DIR": ""}, "the operator sets both"),
        ({"RESUME_FROM": ""}, "the operator sets both"),
        ({"HOLDFAST_METRIC_NAMES": "loss"}, "has 'loss': write name=metric"),
        ({"HOLDFAST_METRIC_NAMES": "loss=a b"}, "write name=metric"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_name(changed: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidSidecarSetting, match=said):
        settings({**KEEPING, **changed})
