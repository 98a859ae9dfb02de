"""What a training script asks holdfast for: where to go on, when to save, whom to tell how it goes.

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

It needs nothing but Python 3.8, and is the same script outside holdfast, where nothing is saved or reported.
"""

from holdfast.train.environment import BadEnvironment, CheckpointFailed, TrainError
from holdfast.train.run import Run, start

__all__ = ["BadEnvironment", "CheckpointFailed", "Run", "TrainError", "start"]
