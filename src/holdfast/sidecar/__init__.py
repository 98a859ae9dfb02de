"""What runs in a worker's pod beside the training program. It starts in every pod, so it imports next to nothing."""
