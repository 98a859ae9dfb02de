"""`holdfast checkpoints`: lists, verifies, prunes and downloads the checkpoints of a job."""
