"""The handwritten digits that ship with holdfast; digits.LICENSE says where they come from."""

import zlib
from importlib import resources

import numpy as np

from holdfast.trainer.data.split import Data, Split

DIGITS_COUNT, DIGITS_SIDE, DIGITS_HELD_OUT = 1797, 8, 360


def digits() -> Data:
    file = resources.files("holdfast.trainer.data") / "digits.bin.z"
    raw = np.frombuffer(zlib.decompress(file.read_bytes()), np.uint8)
    images = raw[: DIGITS_COUNT * DIGITS_SIDE * DIGITS_SIDE].reshape(DIGITS_COUNT, DIGITS_SIDE, DIGITS_SIDE)
    labels = raw[DIGITS_COUNT * DIGITS_SIDE * DIGITS_SIDE :].astype(np.intp)
    # The file is in shuffled order: its end is a fair sample, and the same for every training.
    return Data(
        train=Split(images[:-DIGITS_HELD_OUT], labels[:-DIGITS_HELD_OUT], 16.0),
        test=Split(images[-DIGITS_HELD_OUT:], labels[-DIGITS_HELD_OUT:], 16.0),
    )
