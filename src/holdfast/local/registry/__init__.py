"""A small OCI registry on a loopback address: images of checkpoints without anything installed."""
