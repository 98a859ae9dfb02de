"""The TrainingJob controller."""

from holdfast.controllers.trainingjob.controller import TrainingJobReconciler, training_job_controller

__all__ = ["TrainingJobReconciler", "training_job_controller"]
