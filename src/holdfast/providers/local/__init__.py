"""Machines on this computer: each is a node of its own, made of processes, that can be taken back."""
