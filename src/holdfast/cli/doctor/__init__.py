"""`holdfast doctor`: what of a cluster is fine for holdfast, what is missing, and what to do about it."""
