"""What the sidecars tell the operator: progress, checkpoints, and that they are alive."""
