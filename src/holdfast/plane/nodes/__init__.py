"""Machines: lost ones are marked, and their pods moved."""
