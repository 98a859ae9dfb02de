"""The embedded engine behind its local API, as our own client sees it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from holdfast.cluster.embedded.http import serve
from holdfast.cluster.kubernetes import connect, load_config
from holdfast.runtime.clocks import utc_now

from .embedded_engine import EmbeddedEngine, embedded_engine


@asynccontextmanager
async def served_engine() -> AsyncIterator[EmbeddedEngine]:
    async with embedded_engine() as engine:
        with TemporaryDirectory() as folder:
            async with serve(engine.cluster, Path(folder), now=utc_now) as kubeconfig:
                client = connect(load_config(str(kubeconfig)), rng=Random(0), now=utc_now)
                engine.cluster = client
                try:
                    yield engine
                finally:
                    await client.close()
