"""The three data sets, and the folders that are not one."""

import gzip
import zlib
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from holdfast.trainer.data import digits, load, mnist, synthetic
from holdfast.trainer.settings import InvalidTrainerSetting, settings

MISSING = r"has no train-images-idx3-ubyte \(or .gz\)"


def idx(*shape: int, content: bytes | None = None, kind: int = 8) -> bytes:
    header = bytes((0, 0, kind, len(shape))) + b"".join(length.to_bytes(4, "big") for length in shape)
    return header + (bytes(index % 10 for index in range(int(np.prod(shape)))) if content is None else content)


def write_mnist(folder: Path, **replaced: bytes) -> Path:
    files = {
        "train_images": idx(30, 6, 5),
        "train_labels": idx(30),
        "t10k_images": idx(10, 6, 5),
        "t10k_labels": idx(10),
    }
    for name, content in (files | replaced).items():
        dimensions = 3 if name.endswith("images") else 1
        (folder / f"{name.replace('_', '-')}-idx{dimensions}-ubyte").write_bytes(content)
    return folder


def test_the_digits_are_1797_images_of_which_360_are_held_out() -> None:
    data = digits()
    assert (len(data.train), len(data.test), data.image_shape, data.classes) == (1437, 360, (8, 8), 10)
    assert data.train.images.shape == (1437, 8, 8)
    assert int(data.train.images.max()) == 16
    counts = np.bincount(np.concatenate([data.train.labels, data.test.labels]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(data.test.labels).min() > 20, "every digit is tested"


def test_a_digit_looks_like_itself() -> None:
    data = digits()
    zero = data.train.images[data.train.labels == 0].mean(axis=0)
    assert zero[3, 3] < zero[3, 1], "a nought is hollow"
    assert zero[3, 3] < zero[3, 5]


def test_the_file_of_digits_is_small_and_says_where_it_comes_from() -> None:
    folder = resources.files("holdfast.trainer.data")
    content = (folder / "digits.bin.z").read_bytes()
    assert len(content) <= 60_000
    assert len(zlib.decompress(content)) == 1797 * 65
    licence = (folder / "digits.LICENSE").read_text()
    assert "Creative Commons Attribution 4.0" in licence
    assert "Alpaydin" in licence


def test_a_batch_is_floats_from_0_to_1_with_a_channel() -> None:
    batch = digits().train.batch(np.arange(5))
    assert batch.shape == (5, 8, 8, 1)
    assert batch.dtype == np.float32
    assert 0 <= batch.min() < batch.max() <= 1


def test_synthetic_data_follow_from_the_seed() -> None:
    one, same, other = synthetic(1, 100), synthetic(1, 100), synthetic(2, 100)
    assert np.array_equal(one.train.images, same.train.images)
    assert not np.array_equal(one.train.images, other.train.images)
    assert (len(one.train), len(one.test)) == (80, 20)
    assert np.bincount(one.test.labels).tolist() == [2] * 10


def test_the_smallest_synthetic_set_has_something_to_learn_and_to_test() -> None:
    data = load(settings({"DATASET": "synthetic", "PARAM_SAMPLES": "10"}))
    assert (len(data.train), len(data.test)) == (8, 2)


def test_mnist_is_read_from_idx_files(tmp_path: Path) -> None:
    data = load(settings({"DATASET": "mnist", "DATA_DIR": str(write_mnist(tmp_path))}))
    assert (len(data.train), len(data.test), data.image_shape) == (30, 10, (6, 5))
    assert data.train.labels[:11].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert data.train.batch(np.array([0]))[0, 0, 1, 0] == np.float32(1 / 255)


def test_packed_files_and_names_with_a_dot_are_found_too(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    for file in list(tmp_path.iterdir()):
        packed = tmp_path / (file.name.replace("-idx", ".idx") + ".gz")
        packed.write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert len(mnist(tmp_path).train) == 30


def test_a_folder_without_the_files_is_refused_with_what_to_mount(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrainerSetting, match=MISSING):
        mnist(tmp_path)
    with pytest.raises(InvalidTrainerSetting, match=MISSING):
        mnist(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("replaced", "said"),
    [
        ({"train_images": b""}, "is not an IDX file"),
        ({"train_images": b"GIF89a" * 10}, "is not an IDX file"),
        ({"train_images": idx(30, 6, 5, kind=13)}, "is not an IDX file"),
        ({"train_images": idx(30)}, "is not an IDX file"),
        ({"train_images": idx(30, 6, 5)[:-1]}, "is it cut off"),
        ({"train_images": idx(2**31, 2**31, 2**31, content=b"x")}, "is it cut off"),
        ({"train_labels": idx(29)}, "30 train images for 29 labels"),
        ({"train_images": idx(0, 6, 5), "train_labels": idx(0)}, "0 train images"),
        ({"train_images": idx(30, 0, 0)}, "30 train images for 30 labels"),
        ({"t10k_labels": idx(10, content=b"\x0a" * 10)}, "t10k label 10 is not a digit"),
        ({"t10k_images": idx(10, 5, 6)}, "differ in size"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, replaced: dict[str, bytes], said: str) -> None:
    with pytest.raises(InvalidTrainerSetting, match=said):
        mnist(write_mnist(tmp_path, **replaced))


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(idx(30, 6, 5))[:-20], gzip.compress(b"")[:5]],
    ids=["no archive", "its end is missing", "its head alone"],
)
def test_a_broken_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    write_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").unlink()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(InvalidTrainerSetting, match=r"can't read .*train-images-idx3-ubyte\.gz"):
        mnist(tmp_path)
