"""An operator as a process of its own that never stops writing: every few milliseconds it counts up in a ConfigMap.

python -m tests.runtime.ticker KUBECONFIG NAMESPACE IDENTITY
"""

import sys
from random import Random

import uvloop

from holdfast.api.meta import Key
from holdfast.cluster.kubernetes.client import connect
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.cluster.resources import CONFIG_MAPS
from holdfast.errors import HoldfastError
from holdfast.runtime.controller import Controller, Done, RequeueAfter, Result, TerminalError
from holdfast.runtime.leader import Elector, LeaseTiming
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator, OperatorSettings
from holdfast.runtime.process import on_signal, utc_now

LABELS = "tick=yes"
# Shorter than the real one, and long enough for a busy machine.
TIMING = LeaseTiming(duration_s=10, renew_deadline_s=8.0, retry_s=0.5)


class Ticker:
    def __init__(self, operator: Operator) -> None:
        self._store = operator.store(CONFIG_MAPS, labels=LABELS)
        self.writer = operator.writer()

    async def reconcile(self, key: Key) -> Result:
        obj = self._store.get(key)
        if obj is None:
            return Done()
        count = int(obj.data.get("count", "0")) + 1
        guard = {"resourceVersion": obj.metadata.resource_version}
        await self.writer.for_key(key).patch(CONFIG_MAPS, key, {"metadata": guard, "data": {"count": str(count)}})
        return RequeueAfter(0.05)

    async def report_terminal_error(self, key: Key, error: TerminalError) -> None:
        raise AssertionError("nothing here is terminal")


async def main(kubeconfig: str, namespace: str, identity: str) -> None:
    metrics, random = Metrics(), Random()
    cluster = connect(load_config(kubeconfig), rng=random, now=utc_now, observe=metrics.requested)
    elector = Elector(
        cluster, Key(namespace, "ticker"), identity, now=utc_now, random=random, metrics=metrics, timing=TIMING
    )
    operator = Operator(
        cluster.gated(elector.require_leadership),
        identity=identity,
        now=utc_now,
        random=random,
        metrics=metrics,
        elector=elector,
        settings=OperatorSettings(namespaces=(namespace,)),
    )
    ticker = Ticker(operator)
    operator.add(Controller("ticker", CONFIG_MAPS, ticker, ticker.writer))
    try:
        with on_signal(operator.stop):
            await operator.run()
    finally:
        await cluster.close()


if __name__ == "__main__":
    try:
        uvloop.run(main(*sys.argv[1:]))
    except HoldfastError as error:
        sys.exit(f"{type(error).__name__}: {error}")
