"""Preemption notices: a cloud tells its machine that it takes it back, and the trainings on it save in time."""
