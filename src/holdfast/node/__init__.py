"""The agent of one node: it carries out the runs of CheckpointBackups whose containers run there."""
