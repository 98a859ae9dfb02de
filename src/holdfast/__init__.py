"""Training that holds fast when the machine under it is taken away."""

__version__ = "0.1.0"
