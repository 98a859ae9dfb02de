"""A worker that joins the others through JAX and prints the sum of what each brings: its rank and a number."""

import os
import sys

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

# JAX reads JAX_COORDINATOR_ADDRESS by itself; the other two it wants to be given.
jax.distributed.initialize(
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])
)
rank = jax.process_index()
everyones = multihost_utils.process_allgather(jnp.array(int(sys.argv[1]) + rank))
sys.stdout.write(f"worker {rank} of {jax.process_count()}: {everyones.sum()}\n")
jax.distributed.shutdown()
