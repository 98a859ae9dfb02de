"""Operators as the operator's own tests start them."""

from tests.operator.conftest import start_operator

__all__ = ["start_operator"]
