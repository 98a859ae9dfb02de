"""The array types of the trainer."""

import numpy as np
from numpy.typing import NDArray

# float32 in a training; float64 where a gradient is checked against finite differences.
Floats = NDArray[np.floating]
# What travels between workers.
Doubles = NDArray[np.float64]
Indices = NDArray[np.intp]
Labels = NDArray[np.intp]
Pixels = NDArray[np.uint8] | NDArray[np.float32]
