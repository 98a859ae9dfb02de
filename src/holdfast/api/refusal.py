"""Why an object was refused, in the API server's words."""

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.errors import HoldfastError


class Cause(NamedTuple):
    """One thing that is wrong: where, what, and how the API server classes it."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class ValidationFailed(HoldfastError):
    """The object breaks its schema or rules."""

    def __init__(self, subject: str, causes: Iterable[Cause]) -> None:
        self.causes = tuple(causes)
        super().__init__(f"{subject} is invalid: " + "; ".join(map(str, self.causes)))
