"""A kubelet in a process of its own, for tests that kill it.

`python -m tests.local.kubelet.runner KUBECONFIG NODE DATA`
"""

import asyncio
import sys
from pathlib import Path
from random import Random

from holdfast.cluster.kubernetes.client import connect
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.local.kubelet.kubelet import Kubelet
from tests.local.kubelet.conftest import RESOURCES, now


async def main(kubeconfig: str, node: str, data: str) -> None:
    cluster = connect(load_config(kubeconfig), rng=Random(1), now=now)
    async with Kubelet(cluster, name=node, data=Path(data), resources=RESOURCES, now=now).running():
        sys.stdout.write("running\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
