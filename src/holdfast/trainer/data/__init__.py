"""The data sets of the reference trainer: the bundled digits (source: digits.LICENSE), MNIST, and synthetic data."""

import gzip
import math
import zlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.trainer.model import Floats, Indices, Labels, Pixels
from holdfast.trainer.settings import InvalidTrainerSetting, TrainerSettings, unusable


@dataclass(frozen=True, slots=True)
class Split:
    """Images (n, height, width), stored as they were read: only a batch is converted to floats."""

    images: Pixels
    labels: Labels
    scale: float

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, chosen: Indices) -> Floats:
        """The chosen images (n, height, width, 1), from 0 to 1."""
        return (self.images[chosen].astype(np.float32) / np.float32(self.scale))[..., np.newaxis]


@dataclass(frozen=True, slots=True)
class Data:
    """Images to train on, and images to test on."""

    train: Split
    test: Split
    classes: int = 10

    @property
    def image_shape(self) -> tuple[int, int]:
        height, width = self.train.images.shape[1:]
        return height, width


DIGITS_COUNT, DIGITS_SIDE, DIGITS_HELD_OUT = 1797, 8, 360


def digits() -> Data:
    file = resources.files("holdfast.trainer.data") / "digits.bin.z"
    raw = np.frombuffer(zlib.decompress(file.read_bytes()), np.uint8)
    images = raw[: DIGITS_COUNT * DIGITS_SIDE * DIGITS_SIDE].reshape(DIGITS_COUNT, DIGITS_SIDE, DIGITS_SIDE)
    labels = raw[DIGITS_COUNT * DIGITS_SIDE * DIGITS_SIDE :].astype(np.intp)
    # The file is in shuffled order: its end is a representative sample, and the same for every training.
    return Data(
        train=Split(images[:-DIGITS_HELD_OUT], labels[:-DIGITS_HELD_OUT], 16.0),
        test=Split(images[-DIGITS_HELD_OUT:], labels[-DIGITS_HELD_OUT:], 16.0),
    )


# MNIST, and other data sets in the same IDX format, from a mounted folder.

UNSIGNED_BYTES = 8
IDX_CLASSES = 10


def mnist(folder: Path) -> Data:
    train, test = _split(folder, "train"), _split(folder, "t10k")
    if train.images.shape[1:] != test.images.shape[1:]:
        raise InvalidTrainerSetting(f"DATA_DIR {folder}: the images to learn from and those to test on differ in size")
    return Data(train=train, test=test)


def _split(folder: Path, part: str) -> Split:
    images = _read(folder, f"{part}-images", 3)
    labels = _read(folder, f"{part}-labels", 1)
    if len(images) != len(labels) or not images.size:
        raise InvalidTrainerSetting(f"DATA_DIR {folder}: {len(images)} {part} images for {len(labels)} labels")
    if labels.max() >= IDX_CLASSES:
        raise InvalidTrainerSetting(f"DATA_DIR {folder}: {part} label {labels.max()} is not a digit")
    return Split(images, labels.astype(np.intp), 255.0)


def _read(folder: Path, stem: str, dimensions: int) -> NDArray[np.uint8]:
    file = _find(folder, stem, dimensions)
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise unusable(f"can't read {file}: {error}", error) from error
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, UNSIGNED_BYTES, dimensions)):
        raise InvalidTrainerSetting(f"{file} is not an IDX file of bytes in {dimensions} dimension(s)")
    shape = tuple(int(length) for length in np.frombuffer(content, ">u4", dimensions, 4))
    if math.prod(shape) != len(content) - header:
        raise InvalidTrainerSetting(f"{file} says {shape} and holds {len(content) - header} bytes: is it cut off?")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _find(folder: Path, stem: str, dimensions: int) -> Path:
    """Both common spellings of the file names, compressed or not."""
    names = [f"{stem}{dot}idx{dimensions}-ubyte{packed}" for dot in "-." for packed in ("", ".gz")]
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise InvalidTrainerSetting(
            f"DATA_DIR {folder} has no {names[0]} (or .gz): mount the folder with the four MNIST files"
        )
    return found


# Noisy copies of ten random patterns: data of any size from a seed.

SYNTHETIC_CLASSES, SYNTHETIC_SIDE, SYNTHETIC_NOISE = 10, 8, 0.6


def synthetic(seed: int, samples: int) -> Data:
    """A fifth of the samples is held out."""
    random = np.random.default_rng([seed, 1])
    patterns = random.random((SYNTHETIC_CLASSES, SYNTHETIC_SIDE, SYNTHETIC_SIDE), dtype=np.float32)
    # Classes are balanced, in the first samples as in the last.
    labels = np.arange(samples, dtype=np.intp) % SYNTHETIC_CLASSES
    noise = random.standard_normal((samples, SYNTHETIC_SIDE, SYNTHETIC_SIDE), dtype=np.float32)
    images = patterns[labels] + np.float32(SYNTHETIC_NOISE) * noise
    held_out = samples // 5
    return Data(
        train=Split(images[:-held_out], labels[:-held_out], 1.0),
        test=Split(images[-held_out:], labels[-held_out:], 1.0),
    )


def load(settings: TrainerSettings) -> Data:
    match settings.dataset:
        case "mnist":
            return mnist(settings.data_dir)
        case "synthetic":
            return synthetic(settings.seed, settings.samples)
        case _:
            return digits()
