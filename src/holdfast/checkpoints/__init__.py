"""Checkpoints on a volume or in an object store. A checkpoint is complete, or it does not count."""
