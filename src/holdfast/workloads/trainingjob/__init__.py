"""The objects that make a TrainingJob so, as the API server takes them."""
