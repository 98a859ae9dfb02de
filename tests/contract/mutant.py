"""A fault that an engine might have, and the test that must notice it."""

from msgspec import Struct


class Mutant(Struct, frozen=True):
    """`path` is below src; `old` stands there exactly once; `test` is a file of this suite and a test in it."""

    behaviour: str
    path: str
    old: str
    new: str
    test: str
