"""The phases of a machine: each a function of the observation, run in this order. Pure."""
