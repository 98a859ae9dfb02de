"""Progress from Prometheus metrics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.reports import ProgressReport
from holdfast.sidecar.progress import NAMES, ScrapeState, read_samples

PAGE = """
# HELP training_epoch The epoch under way.
# TYPE training_epoch gauge
training_epoch 3.0
training_epochs_total 10
training_step{rank="0"} 120
training_loss{split="train"} 0.5
training_loss{split="valid"} 0.75
training_loss_scale 65536
my_loss 0.25
python_gc_objects_collected_total{generation="0"} 33
"""


def test_the_documented_names_are_read_and_each_first_value_counts() -> None:
    assert read_samples(PAGE, NAMES) == {"epoch": 3.0, "epochs": 10.0, "step": 120.0, "loss": 0.5}


def test_other_names_can_be_told() -> None:
    assert read_samples(PAGE, {**NAMES, "loss": "my_loss", "scale": "training_loss_scale"}) == {
        "epoch": 3.0,
        "epochs": 10.0,
        "step": 120.0,
        "loss": 0.25,
        "scale": 65536.0,
    }


@pytest.mark.parametrize("line", ["training_epoch", "training_epoch x", "training_epoch{ 3", 'training_epoch{a="} 3'])
def test_a_broken_line_is_left_out_and_the_others_are_read(line: str) -> None:
    assert read_samples(f"{line}\ntraining_loss 0.5\n", NAMES) == {"loss": 0.5}


@given(st.text(max_size=300))
def test_no_page_is_a_surprise(page: str) -> None:
    assert set(read_samples(f"training_epoch{page}", NAMES)) <= set(NAMES)


def entry(epoch: int, step: int | None = None, at: float = 0.0, **metrics: float) -> ProgressReport:
    return ProgressReport(epoch=epoch, step=step, metrics=metrics, at=at)


def test_without_steps_each_new_value_is_the_end_of_an_epoch() -> None:
    scraped = ScrapeState()
    assert scraped.new_entries({"epoch": 1, "loss": 0.5}, 1.0) == [entry(1, at=1.0, loss=0.5)]
    assert scraped.new_entries({"epoch": 1, "loss": 0.5}, 2.0) == []
    assert scraped.new_entries({"epoch": 2, "loss": 0.25}, 3.0) == [entry(2, at=3.0, loss=0.25)]


def test_with_steps_an_epoch_has_ended_when_the_next_one_is_under_way() -> None:
    scraped = ScrapeState()
    assert scraped.new_entries({"epoch": 1, "step": 9, "loss": 0.5}, 1.0) == [entry(1, 9, at=1.0, loss=0.5)]
    news = scraped.new_entries({"epoch": 2, "step": 1, "loss": 0.4}, 2.0)
    assert news == [entry(1, at=1.0, loss=0.5), entry(2, 1, at=2.0, loss=0.4)]


def test_of_epochs_that_passed_unseen_only_the_last_is_known_and_without_metrics() -> None:
    scraped = ScrapeState()
    scraped.new_entries({"epoch": 1, "step": 9, "loss": 0.5}, 1.0)
    assert scraped.new_entries({"epoch": 4, "step": 1}, 2.0) == [entry(3, at=1.0), entry(4, 1, at=2.0)]


def test_a_page_without_an_epoch_tells_nothing_and_forgets_nothing() -> None:
    scraped = ScrapeState()
    scraped.new_entries({"epoch": 1}, 1.0)
    assert scraped.new_entries({"loss": 0.5}, 2.0) == []
    assert scraped.new_entries({"epoch": 1}, 3.0) == []


def test_a_training_that_goes_back_is_followed() -> None:
    scraped = ScrapeState()
    scraped.new_entries({"epoch": 5, "step": 9}, 1.0)
    assert scraped.new_entries({"epoch": 3, "step": 1}, 2.0) == [entry(3, 1, at=2.0)]
