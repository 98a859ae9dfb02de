"""MNIST, and whatever else is in its IDX files, from a mounted folder."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.trainer.data.split import Data, Split
from holdfast.trainer.errors import BadSetting, unusable

UNSIGNED_BYTES = 8
IDX_CLASSES = 10


def mnist(folder: Path) -> Data:
    train, test = _split(folder, "train"), _split(folder, "t10k")
    if train.images.shape[1:] != test.images.shape[1:]:
        raise BadSetting(f"DATA_DIR {folder}: the images to learn from and those to test on differ in size")
    return Data(train=train, test=test)


def _split(folder: Path, part: str) -> Split:
    images = _read(folder, f"{part}-images", 3)
    labels = _read(folder, f"{part}-labels", 1)
    if len(images) != len(labels) or not images.size:
        raise BadSetting(f"DATA_DIR {folder}: {len(images)} {part} images for {len(labels)} labels")
    if labels.max() >= IDX_CLASSES:
        raise BadSetting(f"DATA_DIR {folder}: {part} label {labels.max()} is not a digit")
    return Split(images, labels.astype(np.intp), 255.0)


def _read(folder: Path, stem: str, dimensions: int) -> NDArray[np.uint8]:
    file = _find(folder, stem, dimensions)
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise unusable(f"can't read {file}: {error}", error) from error
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, UNSIGNED_BYTES, dimensions)):
        raise BadSetting(f"{file} is not an IDX file of bytes in {dimensions} dimension(s)")
    shape = tuple(int(length) for length in np.frombuffer(content, ">u4", dimensions, 4))
    if math.prod(shape) != len(content) - header:
        raise BadSetting(f"{file} says {shape} and holds {len(content) - header} bytes: is it cut off?")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _find(folder: Path, stem: str, dimensions: int) -> Path:
    """Both spellings that are about, packed or not."""
    names = [f"{stem}{dot}idx{dimensions}-ubyte{packed}" for dot in "-." for packed in ("", ".gz")]
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise BadSetting(f"DATA_DIR {folder} has no {names[0]} (or .gz): mount the folder with the four MNIST files")
    return found
