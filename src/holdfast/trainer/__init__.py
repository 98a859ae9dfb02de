"""The reference trainer: real data-parallel training in numpy, for jobs that bring no program of their own."""
