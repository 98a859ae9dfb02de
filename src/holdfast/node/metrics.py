"""The metrics of an agent."""

from collections.abc import Callable
from functools import partial
from math import nan

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class AgentMetrics:
    """In the registry of one agent, so that several in one process do not mix."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        duration = partial(Histogram, registry=registry, buckets=SECONDS)
        self._runs = counter(
            "holdfast_node_runs",
            "Runs of CheckpointBackups that ended here, by mode and by result: the phase, or the reason of a failure.",
            ("mode", "result"),
        )
        self._frozen = duration(
            "holdfast_node_frozen_seconds", "How long a container stood still while the runtime saved it."
        )
        self._bytes = counter("holdfast_node_pushed_bytes", "Bytes of layers that were pushed.")
        self._push = duration("holdfast_node_push_seconds", "How long the push of one container's image took.")
        self._kubelet = counter(
            "holdfast_node_kubelet_calls", "Calls of the kubelet's checkpoint endpoint, by outcome.", ("outcome",)
        )
        self._running = Gauge("holdfast_node_run_under_way", "1 while a run is carried out.", registry=registry)
        self._free = Gauge(
            "holdfast_node_checkpoints_free_bytes",
            "Free bytes where the kubelet writes archives.",
            registry=registry,
        )

    def run_ended(self, result: str) -> None:
        self._runs.labels("container", result).inc()

    def kubelet_called(self, outcome: str) -> None:
        self._kubelet.labels(outcome).inc()

    def frozen(self, seconds: float) -> None:
        self._frozen.observe(seconds)

    def pushed(self, size: int, seconds: float) -> None:
        self._bytes.inc(size)
        self._push.observe(seconds)

    def running(self, is_running: bool) -> None:
        self._running.set(is_running)

    def track_free_bytes(self, free_bytes: Callable[[], int]) -> None:
        """Ask for the size when the metrics are read."""

        def size() -> float:
            try:
                return free_bytes()
            except OSError:
                return nan

        self._free.set_function(size)
