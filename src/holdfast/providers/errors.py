"""Errors of a cloud, by what has to happen before another try."""

from typing import ClassVar, Literal, TypeAlias

from holdfast.errors import HoldfastError

Scope: TypeAlias = Literal["zone", "region", "global"]


class ProviderError(HoldfastError):
    """The cloud refused a request, or could not be reached: a passing fault, unless the class says more."""


class MachineNotFound(ProviderError):
    """There is no machine of that name."""


class MachineEnded(ProviderError):
    """The machine was made, and is gone."""

    def __init__(self, message: str, *, preempted: bool) -> None:
        super().__init__(message)
        self.preempted = preempted


class Stockout(ProviderError):
    """The zone has no such machine to spare now: another zone, or later."""

    reason: ClassVar = "Stockout"


class QuotaExceeded(ProviderError):
    """The project may have no more of them, in `scope`: `quota` is its name."""

    reason: ClassVar = "QuotaExceeded"

    def __init__(self, message: str, *, quota: str = "", scope: Scope = "region") -> None:
        super().__init__(message)
        self.quota = quota
        self.scope = scope


class RateLimited(ProviderError):
    """Too many requests; `retry_after_s` is the cloud's own word, if it gave one."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CloudUnauthorized(ProviderError):
    """The credential is wrong or revoked, or lacks a permission, which the message names."""


class InvalidMachine(ProviderError):
    """The template asks for what the cloud does not have: `field` is what to correct.

    `scope` is zone where another zone may have it, else global.
    """

    reason: ClassVar = "Invalid"

    def __init__(self, message: str, *, field: str = "", scope: Literal["zone", "global"] = "global") -> None:
        super().__init__(message)
        self.field = field
        self.scope = scope
