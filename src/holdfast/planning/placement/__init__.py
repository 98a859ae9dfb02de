"""Which machine a workload gets, and who of those who wait gets one first."""

from holdfast.planning.placement.dice import RandomSource
from holdfast.planning.placement.placement import Placement
from holdfast.planning.placement.request import Request
from holdfast.planning.placement.strategies import STRATEGIES
from holdfast.planning.placement.words import WaitMessage

__all__ = ["STRATEGIES", "Placement", "RandomSource", "Request", "WaitMessage"]
