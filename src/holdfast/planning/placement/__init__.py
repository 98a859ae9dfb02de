"""Which machine a workload gets, and who of those who wait gets one first."""

from holdfast.planning.placement.dice import Dice
from holdfast.planning.placement.placement import Placement
from holdfast.planning.placement.request import Request
from holdfast.planning.placement.strategies import STRATEGIES
from holdfast.planning.placement.words import Wait

__all__ = ["STRATEGIES", "Dice", "Placement", "Request", "Wait"]
