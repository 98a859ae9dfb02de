"""Learns handwritten digits with numpy alone: one layer, gradient descent with momentum, saved after every epoch."""

import numpy as np

from holdfast import train
from holdfast.trainer.data import digits

BATCH, RATE, MOMENTUM = 32, 0.1, 0.9


def probabilities(weights: np.ndarray, images: np.ndarray) -> np.ndarray:
    scores = images @ weights
    grown = np.exp(scores - scores.max(axis=1, keepdims=True))
    return grown / grown.sum(axis=1, keepdims=True)


def rows(split, chosen) -> np.ndarray:
    """Images as rows of numbers, each with a 1 at its end for the bias."""
    images = split.batch(chosen).reshape(len(chosen), -1)
    return np.hstack([images, np.ones((len(chosen), 1), np.float32)])


run = train.start()
data = digits()
weights = np.zeros((65, 10))
velocity = np.zeros_like(weights)
if run.resumed:
    with np.load(run.resumed / "state.npz") as saved:
        weights, velocity = saved["weights"], saved["velocity"]
    print(f"resumed from {run.resumed.name}", flush=True)

loss = accuracy = 0.0
test, expected = rows(data.test, np.arange(len(data.test))), data.test.labels
for epoch in run.epochs(default=20):
    # The order depends on the epoch alone: a resumed training sees the same batches.
    order = np.random.default_rng(epoch).permutation(len(data.train))
    for start in run.batches(range(0, len(order), BATCH)):
        chosen = order[start : start + BATCH]
        images, labels = rows(data.train, chosen), data.train.labels[chosen]
        error = probabilities(weights, images) - np.eye(10)[labels]
        velocity = MOMENTUM * velocity - RATE * images.T @ error / len(chosen)
        weights = weights + velocity
        if run.due():  # within an epoch: when asked to, or when checkpoint.interval has passed
            with run.checkpoint() as folder:
                np.savez(folder / "state.npz", weights=weights, velocity=velocity)

    chances = probabilities(weights, test)
    loss = -np.log(chances[np.arange(len(expected)), expected]).mean()
    accuracy = (chances.argmax(axis=1) == expected).mean()
    run.report(loss=loss, accuracy=accuracy)
    if run.due():
        with run.checkpoint() as folder:
            np.savez(folder / "state.npz", weights=weights, velocity=velocity)

print(f"loss {loss} accuracy {accuracy}")
