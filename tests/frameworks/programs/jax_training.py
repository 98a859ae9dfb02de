"""Data-parallel training with JAX: every process has its rows of each batch, and each step sums over all of them."""

import os
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tests.frameworks.programs import epochs
from tests.frameworks.programs.epochs import FEATURES, HIDDEN, MOMENTUM, RATE, ROWS, STEPS

Weights = dict[str, jax.Array]


def main() -> None:
    jax.distributed.initialize(
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])
    )
    mesh = jax.make_mesh((jax.device_count(),), ("workers",))
    everywhere, by_rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("workers"))
    weights, velocity = fresh()

    def load(folder: Path) -> int:
        with np.load(folder / "state.npz") as saved:
            for name in weights:
                weights[name], velocity[name] = saved[name], saved[f"velocity of {name}"]
            return int(saved["epoch"])

    done = epochs.resume(load)
    state, train_everywhere = jax.device_put((weights, velocity), everywhere), jax.jit(train)
    for epoch in range(done + 1, epochs.EPOCHS + 1):
        inputs, outputs = shuffled(epoch)
        for step in epochs.steps(jax.process_index(), epoch):
            rows = slice(step * ROWS, (step + 1) * ROWS)
            state = train_everywhere(*state, jax.device_put((inputs[rows], outputs[rows]), by_rows))
        if jax.process_index() == 0:
            epochs.save(epoch, partial(write, epoch, *state))
    loss = jax.jit(mean_square)(state[0], jax.device_put(data(), by_rows))
    if jax.process_index() == 0:
        epochs.finish(float(loss))
    jax.distributed.shutdown()


def fresh() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    shapes = {"in": (FEATURES, HIDDEN), "out": (HIDDEN, 1)}
    weights = {name: rng.normal(scale=0.3, size=shape).astype(np.float32) for name, shape in shapes.items()}
    return weights, {name: np.zeros_like(value) for name, value in weights.items()}


def data() -> tuple[np.ndarray, np.ndarray]:
    inputs = np.random.default_rng(2).normal(size=(STEPS * ROWS, FEATURES)).astype(np.float32)
    return inputs, np.sin(inputs.sum(axis=1, keepdims=True))


def shuffled(epoch: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng([3, epoch]).permutation(STEPS * ROWS)
    inputs, outputs = data()
    return inputs[order], outputs[order]


def mean_square(weights: Weights, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    inputs, outputs = batch
    return jnp.mean((jnp.tanh(inputs @ weights["in"]) @ weights["out"] - outputs) ** 2)


def train(weights: Weights, velocity: Weights, batch: tuple[jax.Array, jax.Array]) -> tuple[Weights, Weights]:
    gradient = jax.grad(mean_square)(weights, batch)
    velocity = jax.tree.map(lambda before, now: MOMENTUM * before + now, velocity, gradient)
    return jax.tree.map(lambda before, change: before - RATE * change, weights, velocity), velocity


def write(epoch: int, weights: Weights, velocity: Weights, folder: Path) -> None:
    moments = {f"velocity of {name}": value for name, value in velocity.items()}
    np.savez(folder / "state.npz", epoch=epoch, **jax.tree.map(np.asarray, weights | moments))


main()
