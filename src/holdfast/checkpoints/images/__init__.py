"""Checkpoints as OCI images: a container's archive or a training's checkpoint as the one layer, in any registry."""
