"""The embedded engine behind its local API, as our own client sees it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from holdfast.cluster.kubernetes.client import connect
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.local.apiserver.http.app import serve
from holdfast.runtime.process import utc_now

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
