"""How busy the GPUs are that this process sees, as NVIDIA's own library (NVML) tells, where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

LIBRARY = "libnvidia-ml.so.1"
METRIC = "gpu_utilization_percent"


class Gpus:
    """The library is looked for when somebody first asks; one that is not there is not looked for again."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._name = library
        self._library: ctypes.CDLL | None = None
        self._is_initialized = False
        self.is_there = True
        """False once it is known that there is no such library."""

    def utilization_percent(self) -> float | None:
        """The mean over those that tell; None where none does, which is not the same as being idle."""
        if not self._is_usable():
            return None
        told = list(self._each())
        return sum(told) / len(told) if told else None

    def _is_usable(self) -> bool:
        if self._library is None and self.is_there:
            try:
                import ctypes  # dear to import, and most scripts have no use for it

                self._library = ctypes.CDLL(self._name)
                self._library.nvmlDeviceGetUtilizationRates  # noqa: B018  # what has the name and not this is no NVML
            except (ImportError, OSError, AttributeError):
                self._library, self.is_there = None, False
        if self._library is not None and not self._is_initialized:
            self._is_initialized = self._library.nvmlInit_v2() == 0
        return self._is_initialized

    def _each(self) -> Iterator[int]:
        import ctypes

        assert self._library is not None
        count, device, rates = ctypes.c_uint(), ctypes.c_void_p(), (ctypes.c_uint * 2)()  # the GPU's, its memory's
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return
        for index in range(count.value):
            if self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) != 0:
                continue
            if self._library.nvmlDeviceGetUtilizationRates(device, rates) == 0 and rates[0] <= 100:
                yield rates[0]
