"""A Keras model on several workers, each with its rows of every batch; MultiWorkerMirroredStrategy adds the gradients.

Keras 3 has no fit() for several workers, so the step is written out.
"""

import keras
import numpy as np
import tensorflow as tf

from holdfast import train

SAMPLES, FEATURES, BATCH = 96, 8, 16

run = train.start()
strategy = tf.distribute.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(1)
rng = np.random.default_rng(2)
inputs = rng.normal(size=(SAMPLES, FEATURES)).astype("float32")
outputs = np.sin(inputs.sum(axis=1, keepdims=True))

with strategy.scope():
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    state = tf.train.Checkpoint(model=model, optimizer=optimizer)


@tf.function
def update(batch, targets):
    def on_each(batch, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(batch, training=True) - targets) ** 2) / BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    strategy.run(on_each, args=(batch, targets))


if run.resumed:
    state.read(str(run.resumed / "state")).assert_consumed()
    print(f"resumed from {run.resumed.name}", flush=True)

for epoch in run.epochs(default=20):
    # The order depends on the epoch alone: a resumed training sees the same batches.
    order = np.random.default_rng(epoch).permutation(SAMPLES)
    for start in run.batches(range(0, SAMPLES, BATCH)):
        mine = order[start : start + BATCH][run.rank :: run.world]
        update(tf.constant(inputs[mine]), tf.constant(outputs[mine]))
    run.report(loss=np.mean((model(inputs).numpy() - outputs) ** 2))
    if run.due():
        with run.checkpoint() as folder:
            state.write(str(folder / "state"))

print(f"loss {np.mean((model(inputs).numpy() - outputs) ** 2)}", flush=True)
