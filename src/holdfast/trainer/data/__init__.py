"""The data sets that the reference trainer knows."""

from holdfast.trainer.data.digits import digits
from holdfast.trainer.data.idx import mnist
from holdfast.trainer.data.split import Data
from holdfast.trainer.data.synthetic import synthetic
from holdfast.trainer.settings import Settings


def load(settings: Settings) -> Data:
    match settings.dataset:
        case "mnist":
            return mnist(settings.data_dir)
        case "synthetic":
            return synthetic(settings.seed, settings.samples)
        case _:
            return digits()
