"""Which try of a workload is which: the Job's name in status counts them all, also those that are not retries."""

from holdfast.api.gpuworkload import GPUWorkload, GPUWorkloadStatus


def last_attempt(workload: GPUWorkload) -> int:
    """The number of the try that status names, from 0; -1 before the first."""
    status = workload.status or GPUWorkloadStatus()
    if status.job_name is None:
        return -1
    number = status.job_name.removeprefix(_stem(workload)).removeprefix("-")
    return int(number) if number.isdecimal() and len(number) < 10 else 0


def job_name(workload: GPUWorkload, number: int) -> str:
    return f"{_stem(workload)}-{number}" if number else _stem(workload)


def reservation_id(workload: GPUWorkload, number: int) -> str:
    """A mark for the pod of that try, the same for no other pod ever."""
    return f"{workload.metadata.uid}-{number}"


def _stem(workload: GPUWorkload) -> str:
    return f"{workload.metadata.name}-job"
