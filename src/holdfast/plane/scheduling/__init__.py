"""Gives each pod that waits a machine, the most important first."""
