"""Images to learn from and others to be tested on."""

from dataclasses import dataclass

import numpy as np

from holdfast.trainer.arrays import Floats, Indices, Labels, Pixels


@dataclass(frozen=True, slots=True)
class Split:
    """Images (n, height, width), kept as they were read: only a batch becomes floats."""

    images: Pixels
    labels: Labels
    scale: float

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, chosen: Indices) -> Floats:
        """The chosen images (n, height, width, 1), from 0 to 1."""
        return (self.images[chosen].astype(np.float32) / np.float32(self.scale))[..., np.newaxis]


@dataclass(frozen=True, slots=True)
class Data:
    train: Split
    test: Split
    classes: int = 10

    @property
    def image_shape(self) -> tuple[int, int]:
        height, width = self.train.images.shape[1:]
        return height, width
