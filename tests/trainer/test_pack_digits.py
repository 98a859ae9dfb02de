"""The tool that makes the file of digits."""

import gzip
import subprocess
import sys
import zlib
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "pack_digits.py"
ROWS = 5


def pack(folder: Path) -> bytes:
    text = "\n".join(",".join(f"{row}.000" for _ in range(64)) + f",{row}" for row in range(ROWS))
    (folder / "digits.csv.gz").write_bytes(gzip.compress(text.encode()))
    command = [sys.executable, str(TOOL), "digits.csv.gz", "digits.bin.z"]
    subprocess.run(command, cwd=folder, check=True)
    return zlib.decompress((folder / "digits.bin.z").read_bytes())


def test_pixels_come_first_then_the_labels_in_the_same_order(tmp_path: Path) -> None:
    content = pack(tmp_path)
    pixels, labels = content[: ROWS * 64], content[ROWS * 64 :]
    assert sorted(labels) == list(range(ROWS))
    assert [pixels[row * 64 : row * 64 + 64] for row in range(ROWS)] == [bytes([label]) * 64 for label in labels]


def test_the_order_is_shuffled_and_always_the_same(tmp_path: Path) -> None:
    assert pack(tmp_path)[ROWS * 64 :] == pack(tmp_path)[ROWS * 64 :] != bytes(range(ROWS))
