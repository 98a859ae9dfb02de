"""Build Helm, which the chart is tried with, once, into the user's cache.

python -m tests.charts.build
"""

import sys
from pathlib import Path

from tests.control_plane.build import Binary, binary_folder, main

BINARIES = (Binary("helm", "helm.sh/helm/v4/cmd/helm", Path(__file__).with_name("helm")),)
WHAT = "helm"


def helm_program() -> Path:
    """Where Helm is, or will be when it is built."""
    return binary_folder(BINARIES, what=WHAT) / "helm"


if __name__ == "__main__":
    sys.exit(main(BINARIES, what=WHAT))
