"""The root of every error that holdfast raises on purpose."""


class HoldfastError(Exception):
    """An error whose text can be shown to a person as it is."""
