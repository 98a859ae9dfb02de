"""Whether a pod may be on a machine: the rules that the scheduler keeps, for whoever has to foresee them."""
