"""The reference trainer: real data-parallel training in numpy, for jobs without a program of their own."""
