"""Which jobs may start: all workers of a job fit at once, or none starts."""

from holdfast.planning.admission.gang import ADMITTED, Gang, Standing, Verdict
from holdfast.planning.admission.line import Outlook, admit, survey
from holdfast.planning.admission.shape import Shape, shape_of

__all__ = ["ADMITTED", "Gang", "Outlook", "Shape", "Standing", "Verdict", "admit", "shape_of", "survey"]
