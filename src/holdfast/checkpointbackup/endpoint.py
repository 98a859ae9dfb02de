"""Publishes where the leading operator answers node agents, and the one certificate that it shows there."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from holdfast.api.credentials import ENDPOINT_CONFIG_MAP
from holdfast.api.meta import Key
from holdfast.api.reports import FILE
from holdfast.cluster.errors import ClusterError, NotFound
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CONFIG_MAPS

# Somebody may delete or change the ConfigMap.
CHECK_S = 60.0
RETRY_S = 5.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class EndpointPublisher:
    """Runs while this operator leads: a new leader has another address and certificate, and writes its own."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        endpoint_json: Callable[[], str | None],
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._key = Key(namespace, ENDPOINT_CONFIG_MAP)
        self._endpoint_json = endpoint_json
        self._sleep = sleep

    async def run(self) -> None:
        while True:
            try:
                await self.publish()
            except ClusterError as error:
                log.warning("agents can't learn where the operator is", config_map=str(self._key), reason=str(error))
                await self._sleep(RETRY_S)
            else:
                await self._sleep(CHECK_S)

    async def publish(self) -> None:
        """Write the ConfigMap if it is not as it should be."""
        text = self._endpoint_json()
        if text is None:
            return
        data = {FILE: text}
        try:
            found = await self._cluster.get(CONFIG_MAPS, self._key)
        except NotFound:
            labels = {"app.kubernetes.io/name": "holdfast"}
            body = {"metadata": {"name": self._key.name, "labels": labels}, "data": data}
            await self._cluster.create(CONFIG_MAPS, body, namespace=self._key.namespace)
            return
        if found.data.get(FILE) != text:
            await self._cluster.patch(CONFIG_MAPS, self._key, {"data": data})
