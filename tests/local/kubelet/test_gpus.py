"""GPUs: each to one container at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.core.objects import ResourceRequirements
from holdfast.local.kubelet.devices import RESOURCE, GpuAllocator, NotEnoughGpus, cuda_env, needed_by
from holdfast.local.kubelet.objects import RunnableContainer, RunnablePodSpec


def using(name: str, gpus: int, *, sidecar: bool = False) -> RunnableContainer:
    resources = ResourceRequirements(limits={RESOURCE: str(gpus)} if gpus else {})
    return RunnableContainer(name=name, resources=resources, restart_policy="Always" if sidecar else "")


def pod(*main: int, init: tuple[RunnableContainer, ...] = ()) -> RunnablePodSpec:
    return RunnablePodSpec(
        containers=tuple(using(f"main-{n}", gpus) for n, gpus in enumerate(main)), init_containers=init
    )


def test_containers_that_run_together_share_no_device() -> None:
    spec = pod(2, 1, init=(using("sidecar", 1, sidecar=True),))
    shares = GpuAllocator(4).take("a", spec)
    assert shares == {"sidecar": (0,), "main-0": (1, 2), "main-1": (3,)}


def test_an_init_container_uses_devices_of_those_that_come_after_it() -> None:
    spec = pod(1, init=(using("early", 2), using("sidecar", 1, sidecar=True)))
    assert needed_by(spec) == 2
    assert GpuAllocator(2).take("a", spec) == {"early": (0, 1), "sidecar": (0,), "main-0": (1,)}


def test_a_request_counts_where_there_is_no_limit() -> None:
    asking = RunnableContainer(name="main", resources=ResourceRequirements(requests={RESOURCE: 1}))
    assert needed_by(RunnablePodSpec(containers=(asking,))) == 1


def test_too_few_are_refused_and_nothing_is_taken() -> None:
    gpus = GpuAllocator(2)
    gpus.take("a", pod(1))
    with pytest.raises(NotEnoughGpus, match=r"asks for 2 nvidia.com/gpu, and 1 are free on this machine"):
        gpus.take("b", pod(2))
    assert gpus.take("c", pod(1)) == {"main-0": (1,)}


def test_released_devices_are_given_out_again_once() -> None:
    gpus = GpuAllocator(1)
    gpus.take("a", pod(1))
    gpus.release("a")
    gpus.release("a")
    assert gpus.take("b", pod(1)) == {"main-0": (0,)}


def test_a_container_without_gpus_sees_none() -> None:
    assert cuda_env(()) == {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    assert cuda_env((1, 3))["CUDA_VISIBLE_DEVICES"] == "1,3"


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3), st.booleans()), max_size=30))
def test_no_device_ever_has_two_owners(steps: list[tuple[str, int, bool]]) -> None:
    gpus, held = GpuAllocator(4), dict[str, tuple[int, ...]]()
    for name, count, take in steps:
        if take and name not in held:
            try:
                held[name] = gpus.take(name, pod(count))["main-0"]
            except NotEnoughGpus:
                assert count > 4 - sum(map(len, held.values()))
        elif not take:
            gpus.release(name)
            held.pop(name, None)
    devices = [device for share in held.values() for device in share]
    assert len(devices) == len(set(devices))
