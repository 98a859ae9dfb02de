"""Jobs that share the machine's network, and meet each at a port of its own."""

import socket

import pytest

from holdfast.local.kubelet.context import PodAddresses
from holdfast.local.kubelet.environment import DeclaredEnv
from holdfast.local.kubelet.launch import with_unique_ports
from tests.control_plane.ports import free_ports
from tests.local.kubelet.bench import Bench, env_lines, shell

ONE, OTHER = "one-0.workers.team.svc", "other-0.workers.team.svc"


@pytest.fixture
def book() -> PodAddresses:
    return PodAddresses("m")


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


def torch(host: str, port: object) -> DeclaredEnv:
    return DeclaredEnv(
        {"MASTER_ADDR": host, "MASTER_PORT": str(port), "PET_MASTER_ADDR": host, "PET_MASTER_PORT": str(port)}
    )


def jax(host: str, port: object) -> DeclaredEnv:
    return DeclaredEnv({"JAX_COORDINATOR_ADDRESS": f"{host}:{port}"})


def test_a_job_alone_meets_at_its_address(book: PodAddresses, port: int) -> None:
    assert with_unique_ports(torch(ONE, port), "a", book) == torch(ONE, port)
    assert with_unique_ports(jax(ONE, port), "a", book) == jax(ONE, port)


def test_workers_of_two_jobs_meet_at_two_ports_and_those_of_one_at_one(book: PodAddresses, port: int) -> None:
    first = [with_unique_ports(torch(ONE, port), holder, book) for holder in ("a", "b")]
    second = [with_unique_ports(torch(OTHER, port), holder, book) for holder in ("c", "d")]
    assert first[0] == first[1]
    assert second[0] == second[1]
    moved = second[0].values
    assert moved["MASTER_PORT"] == moved["PET_MASTER_PORT"] != str(port)


def test_a_jax_job_keeps_out_of_a_pytorch_jobs_way(book: PodAddresses, port: int) -> None:
    with_unique_ports(torch(ONE, port), "a", book)
    moved = with_unique_ports(jax(OTHER, port), "b", book).values["JAX_COORDINATOR_ADDRESS"]
    host, _, given = moved.rpartition(":")
    assert host == OTHER
    assert int(given) > port


def test_what_is_no_pod_of_this_machine_stays_as_it_is(book: PodAddresses, port: int) -> None:
    with_unique_ports(torch(ONE, port), "a", book)
    for elsewhere in (torch("10.0.0.7", port), jax("trainer.example.com", port)):
        assert with_unique_ports(elsewhere, "b", book) == elsewhere


@pytest.mark.parametrize("odd", ["", "x", "-1", "٣", "1" * 5000])
def test_what_is_no_port_stays_as_it_is(book: PodAddresses, odd: str) -> None:
    for variables in (torch(ONE, odd), jax(ONE, odd), DeclaredEnv({"JAX_COORDINATOR_ADDRESS": ONE})):
        assert with_unique_ports(variables, "a", book) == variables


def test_half_of_a_meeting_place_stays_as_it_is(book: PodAddresses, port: int) -> None:
    for half in ({"MASTER_ADDR": ONE}, {"MASTER_PORT": str(port)}, {}):
        assert with_unique_ports(DeclaredEnv(half), "a", book) == DeclaredEnv(half)


@pytest.mark.parametrize("hidden", ["MASTER_ADDR", "MASTER_PORT", "JAX_COORDINATOR_ADDRESS"])
def test_a_secret_stays_as_it_is(book: PodAddresses, port: int, hidden: str) -> None:
    with_unique_ports(torch(ONE, port), "a", book)
    values = {"MASTER_ADDR": OTHER, "MASTER_PORT": str(port)} if "MASTER" in hidden else jax(OTHER, port).values
    secret = DeclaredEnv(values, frozenset({hidden}))
    assert with_unique_ports(secret, "b", book) == secret


async def test_a_container_gets_its_address_in_variables_and_arguments_alike(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        host = f"job-0.workers.{bench.namespace}.svc"
        env = [{"name": "MASTER_ADDR", "value": host}, {"name": "MASTER_PORT", "value": str(port)}]
        pod = await bench.ended(shell("env; echo ARGUMENT=$(MASTER_PORT)", env=env))
        found = env_lines(await bench.log(pod.metadata.key))
    assert found["MASTER_PORT"] == found["ARGUMENT"]
    assert int(found["MASTER_PORT"]) > port
