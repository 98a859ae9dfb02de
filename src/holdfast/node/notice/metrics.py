"""Counts of preemption notices and of what follows them."""

from prometheus_client import CollectorRegistry, Counter

from holdfast.node.notice.sidecars import CallResult


class NoticeMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._notices = Counter(
            "holdfast_preemption_notices", "Preemption notices of this node's cloud.", ("cloud",), registry=registry
        )
        self._calls = Counter(
            "holdfast_preemption_saves",
            "Sidecars asked for a save after a notice, by result: asked or failed.",
            ("result",),
            registry=registry,
        )
        self._errors = Counter(
            "holdfast_metadata_errors",
            "Questions that the cloud's metadata server did not answer as it should.",
            ("cloud",),
            registry=registry,
        )

    def noticed(self, cloud: str) -> None:
        self._notices.labels(cloud).inc()

    def called(self, result: CallResult) -> None:
        self._calls.labels(result).inc()

    def metadata_failed(self, cloud: str) -> None:
        self._errors.labels(cloud).inc()
