"""Checkpoints that are there whole or not at all: on a volume, or in an object store."""
