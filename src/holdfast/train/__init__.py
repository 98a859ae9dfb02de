"""The SDK for training scripts: resume from a checkpoint, save checkpoints when they are due, report progress.

    from holdfast import train

    run = train.start()
    if run.resumed:
        load(run.resumed / "model.pt")
    for epoch in run.epochs(10):
        for batch in run.batches(loader):
            ...
        run.report(loss=loss, accuracy=accuracy)
        if run.due():
            with run.checkpoint() as folder:
                save(folder / "model.pt")

The SDK needs only Python 3.8. The same script runs outside holdfast, where nothing is saved or reported.
"""

from holdfast.train.environment import BadEnvironment, CheckpointFailed, TrainError
from holdfast.train.run import Run, start

__all__ = ["BadEnvironment", "CheckpointFailed", "Run", "TrainError", "start"]
