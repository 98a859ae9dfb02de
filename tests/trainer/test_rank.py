"""Which worker this is, in the words of each framework."""

import json

import pytest

from holdfast.trainer.settings import InvalidTrainerSetting, RankInfo, read_rank_info

PYTORCH = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "job-0.job-headless", "MASTER_PORT": "29500"}
JAX = {"JAX_PROCESS_ID": "2", "JAX_NUM_PROCESSES": "4", "JAX_COORDINATOR_ADDRESS": "job-0.job-headless:29500"}
WORKERS = [f"job-{index}.job-headless:29500" for index in range(4)]
TENSORFLOW = {"TF_CONFIG": json.dumps({"cluster": {"worker": WORKERS}, "task": {"type": "worker", "index": 2}})}


def tf_config(**changes: object) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps(json.loads(TENSORFLOW["TF_CONFIG"]) | changes)}


@pytest.mark.parametrize("environ", [PYTORCH, JAX, TENSORFLOW])
def test_each_framework_s_variables_say_the_same(environ: dict[str, str]) -> None:
    assert read_rank_info(environ) == RankInfo(rank=2, size=4, host="job-0.job-headless", port=29500)


def test_a_process_without_any_of_them_is_alone() -> None:
    assert read_rank_info({"MASTER_ADDR": "elsewhere", "HOLDFAST_INDEX": "3"}) == RankInfo()


@pytest.mark.parametrize(
    "environ",
    [
        PYTORCH | {"RANK": "0", "WORLD_SIZE": "1"},
        JAX | {"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "1"},
        tf_config(cluster={"worker": WORKERS[:1]}, task={"type": "worker", "index": 0}),
    ],
)
def test_one_worker_of_one_needs_nobody(environ: dict[str, str]) -> None:
    assert read_rank_info(environ) == RankInfo()


def test_an_ipv6_address_keeps_its_colons() -> None:
    assert read_rank_info(JAX | {"JAX_COORDINATOR_ADDRESS": "[fd00::1]:29500"}).host == "fd00::1"


@pytest.mark.parametrize("missing", PYTORCH)
def test_half_of_the_variables_is_refused_with_what_is_missing(missing: str) -> None:
    environ = {name: value for name, value in PYTORCH.items() if name != missing}
    with pytest.raises(
        InvalidTrainerSetting, match=f"{missing} not: set all of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"
    ):
        read_rank_info(environ)


@pytest.mark.parametrize("missing", JAX)
def test_half_of_jax_s_variables_is_refused_too(missing: str) -> None:
    environ = {name: value for name, value in JAX.items() if name != missing}
    with pytest.raises(InvalidTrainerSetting, match=f"{missing} not"):
        read_rank_info(environ)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"RANK": "4"}, "RANK is '4': write a whole number from 0 to 3"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT is '70000'"),
    ],
)
def test_a_place_that_can_t_be_is_refused(change: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidTrainerSetting, match=said):
        read_rank_info(PYTORCH | change)


@pytest.mark.parametrize("address", ["host", "host:", ":1", "host:0", "host:99999", "host:http"])
def test_an_address_without_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(InvalidTrainerSetting, match=r"JAX_COORDINATOR_ADDRESS is .*: write host:port"):
        read_rank_info(JAX | {"JAX_COORDINATOR_ADDRESS": address})


@pytest.mark.parametrize(
    "text", ["{", "[]", "3", "{}", '{"cluster": {}, "task": {}}', '{"cluster": {"worker": 3}, "task": {"type": "w"}}']
)
def test_a_tf_config_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidTrainerSetting, match="TF_CONFIG is not"):
        read_rank_info({"TF_CONFIG": text})


@pytest.mark.parametrize("task", [{"type": "ps", "index": 0}, {"type": "worker", "index": 4}])
def test_a_task_that_is_no_worker_is_refused(task: dict[str, object]) -> None:
    with pytest.raises(InvalidTrainerSetting, match="there are 4 workers"):
        read_rank_info(tf_config(task=task))
