"""Objects that are accepted, and objects that are refused with the field and the words: for us and the API server."""

from tests.api.cases.changes import CHANGES
from tests.api.cases.objects import Case, Change, Report, merged
from tests.api.cases.pods import ENVIRONMENT, PODS, RESOURCES, SCHEDULING
from tests.api.cases.shape import NAMES, STATUSES, TYPES
from tests.api.cases.spot import BACKUPS, SPOT
from tests.api.cases.training import CHECKPOINTS, MONITORING, NETWORKING, STORAGE

__all__ = ["CASES", "CHANGES", "STATUSES", "Case", "Change", "Report", "merged"]

CASES = [
    *TYPES,
    *NAMES,
    *STORAGE,
    *CHECKPOINTS,
    *NETWORKING,
    *MONITORING,
    *RESOURCES,
    *ENVIRONMENT,
    *SCHEDULING,
    *PODS,
    *SPOT,
    *BACKUPS,
]
