"""The sidecar container of a worker pod. Every worker pod starts one, so the package imports next to nothing."""
