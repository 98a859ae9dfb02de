"""What a TrainingJob's state is, given what is seen of it."""
