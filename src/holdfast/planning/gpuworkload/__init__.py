"""What a GPUWorkload needs next, given what is seen of it."""
