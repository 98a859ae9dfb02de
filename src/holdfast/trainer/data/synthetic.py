"""Noisy copies of ten random patterns: data of any size out of a seed."""

import numpy as np

from holdfast.trainer.data.split import Data, Split

SYNTHETIC_CLASSES, SYNTHETIC_SIDE, SYNTHETIC_NOISE = 10, 8, 0.6


def synthetic(seed: int, samples: int) -> Data:
    """A fifth of the samples is held out."""
    random = np.random.default_rng([seed, 1])
    patterns = random.random((SYNTHETIC_CLASSES, SYNTHETIC_SIDE, SYNTHETIC_SIDE), dtype=np.float32)
    # Every class as often as the others, in the first samples as in the last.
    labels = np.arange(samples, dtype=np.intp) % SYNTHETIC_CLASSES
    noise = random.standard_normal((samples, SYNTHETIC_SIDE, SYNTHETIC_SIDE), dtype=np.float32)
    images = patterns[labels] + np.float32(SYNTHETIC_NOISE) * noise
    held_out = samples // 5
    return Data(
        train=Split(images[:-held_out], labels[:-held_out], 1.0),
        test=Split(images[-held_out:], labels[-held_out:], 1.0),
    )
