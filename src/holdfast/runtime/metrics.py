"""The metrics of the operator itself, in a separate registry."""

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from holdfast.api.meta import Key

DURATIONS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """One registry per operator, so that two operators in one process do not mix."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        gauge, counter = partial(Gauge, registry=registry), partial(Counter, registry=registry)
        duration = partial(Histogram, registry=registry, buckets=DURATIONS_S)

        self._depth = gauge("holdfast_queue_depth", "Keys that wait for a worker now.", ("controller",))
        self._reconciles = counter(
            "holdfast_reconciles",
            "Reconciles by how they ended: done, requeue, conflict, terminal or error.",
            ("controller", "result"),
        )
        self._retries = counter(
            "holdfast_reconcile_retries", "Reconciles that are tried again after a backoff.", ("controller",)
        )
        self._work = duration("holdfast_reconcile_duration_seconds", "How long one reconcile takes.", ("controller",))

        self._restarts = counter(
            "holdfast_watch_restarts", "Watches begun again, by why the one before ended.", ("resource", "reason")
        )
        self._handler_errors = counter(
            "holdfast_handler_errors", "Changes that an index or a handler could not take in.", ("resource",)
        )
        self._undecodable = counter(
            "holdfast_undecodable_objects", "Objects left out because they do not fit their model.", ("resource",)
        )

        self._requests = counter(
            "holdfast_api_requests",
            "Requests to the API server by HTTP status; code 0 means no answer.",
            ("verb", "resource", "code"),
        )
        self._request_time = duration(
            "holdfast_api_request_duration_seconds", "How long the API server takes to answer.", ("verb", "resource")
        )

        self._events_dropped = counter(
            "holdfast_events_dropped",
            "Events not written: overflow (too many waiting), rate (too many about one object) or error.",
            ("reason",),
        )
        self._leader = gauge("holdfast_leader", "1 while this process holds the Lease, or works without one.")

    def track_queue(self, controller: str, depth: Callable[[], int]) -> None:
        self._depth.labels(controller).set_function(depth)

    def reconciled(self, controller: str, result: str, seconds: float) -> None:
        self._reconciles.labels(controller, result).inc()
        self._work.labels(controller).observe(seconds)

    def retried(self, controller: str) -> None:
        self._retries.labels(controller).inc()

    def watch_restarted(self, resource: str, reason: str) -> None:
        self._restarts.labels(resource, reason).inc()

    def handler_failed(self, resource: str) -> None:
        self._handler_errors.labels(resource).inc()

    def undecodable(self, resource: str) -> None:
        self._undecodable.labels(resource).inc()

    def requested(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self._requests.labels(verb, resource, str(code)).inc()
        self._request_time.labels(verb, resource).observe(seconds)

    def event_dropped(self, reason: str, count: int = 1) -> None:
        self._events_dropped.labels(reason).inc(count)

    def leading(self, leads: bool) -> None:
        self._leader.set(leads)


class ReconcileDurations:
    """What the metrics of every kind have: `{kind}_reconcile_duration_seconds`."""

    def __init__(self, registry: CollectorRegistry, kind: str) -> None:
        self._durations = Histogram(
            f"{kind}_reconcile_duration_seconds",
            "How long one reconcile takes, by how it ended.",
            ("result",),
            buckets=DURATIONS_S,
            registry=registry,
        )

    def reconciled(self, _key: Key, result: str, seconds: float, _error: BaseException | None = None) -> None:
        self._durations.labels(result).observe(seconds)
