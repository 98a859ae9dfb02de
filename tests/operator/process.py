"""The operator as users run it: a process of its own, known to the API server by a name of its own."""

import json
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.control_plane.audit import Request
from tests.control_plane.component import Component
from tests.control_plane.ports import free_ports
from tests.control_plane.probe import answers
from tests.control_plane.server import ADMINISTRATORS, ControlPlane


class OperatorProcess(Component):
    """`holdfast operator` on a control plane; `writes` is what the server was asked to change by it alone."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        *options: str,
        kubeconfig: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.plane = plane
        self.user = f"operator-{secrets.token_hex(3)}"
        self.metrics_port, self.health_port = free_ports(2)
        login = kubeconfig or plane.user(self.user, ADMINISTRATORS)
        command = [
            sys.executable,
            "-m",
            "holdfast",
            "operator",
            f"--kubeconfig={login}",
            f"--metrics-port={self.metrics_port}",
            f"--health-port={self.health_port}",
            f"--bind-address={plane.address}",
            *options,
        ]
        log = folder / f"{self.user}.log"
        ready = partial(answers, self.health_port, "/readyz", host=plane.address)
        super().__init__("holdfast operator", command, log=log, ready=ready, environment=environment)

    def writes(self, since: int = 0) -> list[Request]:
        """Without the Lease and events, which are written whether or not there is something to do."""
        asked = self.plane.audit(since, user=self.user)
        return [one for one in asked if one.is_write and one.target.resource not in ("leases", "events")]

    def said(self) -> list[dict[str, object]]:
        """Its log, a line each."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def leads(self) -> bool:
        return any(line["event"] == "leading" for line in self.said())

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll() if self._process else None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    @contextmanager
    def running(self) -> Iterator["OperatorProcess"]:
        self.start()
        try:
            yield self
        finally:
            self.resume()
            self.stop()
