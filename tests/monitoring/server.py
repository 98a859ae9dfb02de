"""Prometheus on the loopback address, as a process that ends with the block."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.control_plane.component import Component
from tests.control_plane.ports import free_ports
from tests.control_plane.probe import answers
from tests.monitoring.manifests import groups

JSON = dict[str, Any]
HOST = "127.0.0.1"
# Two more than a rate needs.
SCRAPES = 4


class Target:
    """Something to scrape: its port, and the labels that the Prometheus Operator would give it."""

    def __init__(self, port: int, honor_labels: bool, labels: Mapping[str, str]) -> None:
        self.port = port
        self.honor_labels = honor_labels
        self.labels = labels


class Prometheus:
    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        self._url = f"http://{HOST}:{port}/api/v1"
        self._session = session

    async def query(self, query: str) -> list[JSON]:
        """The series that the query returns now."""
        data = await self._asked("query", query=query)
        found: list[JSON] = data["result"]
        return found

    async def rules(self) -> list[JSON]:
        return [rule for group in (await self._asked("rules"))["groups"] for rule in group["rules"]]

    async def _asked(self, what: str, **parameters: str) -> JSON:
        async with self._session.get(f"{self._url}/{what}", params=parameters) as response:
            body: JSON = json.loads(await response.text())
        assert body["status"] == "success", body
        data: JSON = body["data"]
        return data


@asynccontextmanager
async def scraping(program: Path, folder: Path, targets: Mapping[str, Target]) -> AsyncIterator[Prometheus]:
    """A Prometheus with our rules, once it has scraped each target, by its job's name, a few times."""
    (port,) = free_ports(1)
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups()}))
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(_configuration(targets)))
    command = [
        str(program),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={HOST}:{port}",
    ]
    ready = partial(answers, port, "/-/ready", host=HOST)
    server = Component("prometheus", command, log=folder / "prometheus.log", ready=ready)
    try:
        # The targets are served by this loop.
        await asyncio.to_thread(server.start)
        async with aiohttp.ClientSession() as session:
            prometheus = Prometheus(port, session)
            await _scraped(prometheus, len(targets), server)
            yield prometheus
    finally:
        await asyncio.to_thread(server.stop)


def _configuration(targets: Mapping[str, Target]) -> JSON:
    jobs = [
        {
            "job_name": name,
            "honor_labels": target.honor_labels,
            "static_configs": [{"targets": [f"{HOST}:{target.port}"], "labels": dict(target.labels)}],
        }
        for name, target in targets.items()
    ]
    every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    return {"global": every, "rule_files": ["rules.yaml"], "scrape_configs": jobs}


async def _scraped(prometheus: Prometheus, targets: int, server: Component) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while True:
        found = await prometheus.query(f"sum_over_time(up[1h]) >= {SCRAPES}")
        if len(found) == targets:
            return
        assert asyncio.get_running_loop().time() < deadline, f"not scraped within a minute: {server.tail()}"
        await asyncio.sleep(0.2)


def has_value(series: list[JSON]) -> bool:
    """Of a histogram without observations the quantile is no number."""
    return any(not math.isnan(float(each["value"][1])) for each in series)
