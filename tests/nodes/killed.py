"""A lab with a pod on it, in a process that is there to be killed: python -m tests.nodes.killed

Says its number and its folder when the pod runs.
"""

import signal
import sys

from tests.nodes.lab import Lab
from tests.nodes.manifests import FOREVER, container, pod
from tests.nodes.until import until


def main() -> None:
    with Lab().running() as lab:
        kubectl = lab.plane.kubectl
        until(lambda: "default" in kubectl("get", "serviceaccounts"), "there is a service account")
        kubectl("apply", "--filename=-", input=pod("left", container("trainer", FOREVER)))
        until(lambda: kubectl("get", "pod", "left", "--output=jsonpath={.status.phase}") == "Running", "the pod runs")
        sys.stdout.write(f"{lab.addresses.lab} {lab.folder}\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
