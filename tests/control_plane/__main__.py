"""Run a control plane with a few fake nodes until interrupted, to try things by hand.

python -m tests.control_plane
"""

import asyncio
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.control_plane.build import build
from tests.control_plane.server import ControlPlane

NODES, GPUS = 4, 8


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    binaries = build(sys.stdout)
    with (
        suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory(prefix="holdfast-") as folder,
        ControlPlane(Path(folder), binaries).running() as plane,
    ):
        asyncio.run(plane.nodes.add(NODES, gpus=GPUS))
        sys.stdout.write(f"{NODES} fake nodes with {GPUS} GPUs each; Ctrl-C ends it. In another shell:\n")
        sys.stdout.write(f"  export KUBECONFIG={plane.kubeconfig} PATH={binaries}:$PATH\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
