"""The TrainingJob controller."""

from holdfast.controllers.trainingjob.controller import TrainingJobs, training_jobs

__all__ = ["TrainingJobs", "training_jobs"]
