"""What is special about each of Kubernetes' own kinds that holdfast uses."""
