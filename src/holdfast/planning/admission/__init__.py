"""Which jobs may start: all workers of a job fit at once, or none starts."""

from holdfast.planning.admission.gang import ADMITTED, AdmissionDecision, Gang, GangState
from holdfast.planning.admission.line import AdmissionResult, admit, run_admission
from holdfast.planning.admission.shape import PodRequirements, shape_of

__all__ = [
    "ADMITTED",
    "AdmissionDecision",
    "AdmissionResult",
    "Gang",
    "GangState",
    "PodRequirements",
    "admit",
    "run_admission",
    "shape_of",
]
