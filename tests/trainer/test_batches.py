"""Every sample once in an epoch, the same steps whatever the number of workers."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.trainer.training import batches, evaluation, order, share


def test_an_epoch_s_order_follows_from_seed_and_epoch() -> None:
    assert np.array_equal(order(1, 1, 50), order(1, 1, 50))
    assert not np.array_equal(order(1, 1, 50), order(1, 2, 50))
    assert not np.array_equal(order(1, 1, 50), order(2, 1, 50))
    assert sorted(order(3, 7, 50)) == list(range(50))


def test_a_step_takes_as_many_batches_as_are_accumulated() -> None:
    step = batches(np.arange(100), batch_size=8, accumulation_steps=3)
    assert [batch.tolist() for batch in step] == [list(range(8)), list(range(8, 16)), list(range(16, 24))]


def test_the_last_step_takes_what_is_left() -> None:
    assert [len(batch) for batch in batches(np.arange(11), batch_size=8, accumulation_steps=3)] == [8, 3]


@settings(deadline=None)
@given(st.integers(0, 70), st.integers(1, 9))
def test_the_workers_shares_are_the_batch_in_even_parts(length: int, size: int) -> None:
    batch = np.arange(length)
    shares = [share(batch, rank, size) for rank in range(size)]
    assert np.concatenate(shares).tolist() == batch.tolist()
    assert max(len(part) for part in shares) - min(len(part) for part in shares) <= 1


@settings(deadline=None)
@given(st.integers(1, 2000), st.integers(1, 5))
def test_every_held_out_sample_is_evaluated_once(samples: int, size: int) -> None:
    seen = [index for rank in range(size) for part in evaluation(samples, rank, size) for index in part.tolist()]
    assert seen == list(range(samples))
