"""Make the data file of the reference trainer: python tools/pack_digits.py digits.csv.gz OUTPUT.

The input is sklearn/datasets/data/digits.csv.gz out of any scikit-learn wheel (1,797 rows of 64 pixels and a label).
The rows are shuffled once, here, so that the held-out rows at the end are the same for everybody for ever.
"""

import csv
import gzip
import random
import sys
import zlib
from pathlib import Path


def main(source: Path, target: Path) -> None:
    with gzip.open(source, "rt") as lines:
        rows = [[int(float(cell)) for cell in row] for row in csv.reader(lines)]
    random.Random(1797).shuffle(rows)  # noqa: S311 - an order, not a secret
    pixels = b"".join(bytes(row[:-1]) for row in rows)
    labels = bytes(row[-1] for row in rows)
    target.write_bytes(zlib.compress(pixels + labels, 9))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
