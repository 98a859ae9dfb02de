"""Run a lab until interrupted, to try things by hand, or to look at what a test left unclear.

python -m tests.nodes
"""

import signal
import sys
import time
from contextlib import suppress

from tests.control_plane.build import binary_folder
from tests.nodes.lab import Lab


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    with suppress(KeyboardInterrupt), Lab().running() as lab:
        sys.stdout.write(f"Ready after {time.monotonic() - began:.1f} s; Ctrl-C ends it. In another shell:\n")
        sys.stdout.write(f"  export KUBECONFIG={lab.plane.kubeconfig} PATH={binary_folder()}:$PATH\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
