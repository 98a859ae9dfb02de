"""`holdfast checkpoints`: what a job has saved, whether it is whole, what may go, and how to have it."""
