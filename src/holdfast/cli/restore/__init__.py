"""`holdfast restore`: start a pod from the images of a CheckpointBackup."""
