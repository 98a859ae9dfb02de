"""Data-parallel training with JAX: every process has its rows of each batch, and all have the same weights."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from holdfast import train

SAMPLES, FEATURES, BATCH, RATE, MOMENTUM = 96, 8, 16, 0.05, 0.9


def mean_square(weights, inputs, outputs):
    return jnp.mean((jnp.tanh(inputs @ weights["in"]) @ weights["out"] - outputs) ** 2)


@jax.jit
def update(weights, velocity, inputs, outputs):
    gradient = jax.grad(mean_square)(weights, inputs, outputs)
    velocity = jax.tree.map(lambda before, now: MOMENTUM * before + now, velocity, gradient)
    return jax.tree.map(lambda before, change: before - RATE * change, weights, velocity), velocity


run = train.start()
if run.world > 1:
    jax.distributed.initialize(num_processes=run.world, process_id=run.rank)  # the address is in the environment
mesh = jax.make_mesh((jax.device_count(),), ("workers",))
everywhere, by_rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("workers"))

rng = np.random.default_rng(1)
shapes = {"in": (FEATURES, 16), "out": (16, 1)}
weights = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
velocity = {name: np.zeros_like(value) for name, value in weights.items()}
inputs = rng.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
outputs = np.sin(inputs.sum(axis=1, keepdims=True))
if run.resumed:
    with np.load(run.resumed / "state.npz") as saved:
        weights = {name: saved[name] for name in weights}
        velocity = {name: saved[f"velocity-{name}"] for name in velocity}
    print(f"resumed from {run.resumed.name}", flush=True)

weights, velocity = jax.device_put((weights, velocity), everywhere)
loss_of_all = jax.jit(mean_square)
for epoch in run.epochs(default=20):
    # The order depends on the epoch alone: a resumed training sees the same batches.
    order = np.random.default_rng(epoch).permutation(SAMPLES)
    for start in run.batches(range(0, SAMPLES, BATCH)):
        chosen = order[start : start + BATCH]
        weights, velocity = update(weights, velocity, *jax.device_put((inputs[chosen], outputs[chosen]), by_rows))
    loss = loss_of_all(weights, *jax.device_put((inputs, outputs), by_rows))
    run.report(loss=loss)
    if run.due():
        with run.checkpoint() as folder:
            moments = {f"velocity-{name}": value for name, value in velocity.items()}
            np.savez(folder / "state.npz", **jax.tree.map(np.asarray, {**weights, **moments}))

loss = loss_of_all(weights, *jax.device_put((inputs, outputs), by_rows))
if run.rank == 0:
    print(f"loss {float(loss)}", flush=True)
if run.world > 1:
    jax.distributed.shutdown()
