"""Addresses of pods: from their names, one each."""

import ipaddress
import socket

from hypothesis import given
from hypothesis import strategies as st

from holdfast.local.kubelet.context import PodAddresses, candidate
from tests.control_plane.ports import free_ports

NAME = "job-0.workers.team.svc"


def of_worker(book: PodAddresses, holder: str = "a", index: int = 0) -> str:
    return book.of_pod(holder, namespace="team", hostname=f"job-{index}", subdomain="workers")


def test_a_name_means_the_address_of_the_pod_that_will_bear_it() -> None:
    book = PodAddresses("m")
    mentioned = book.resolve("client", NAME)
    assert mentioned == of_worker(book, "server")


def test_every_worker_computes_the_same_address() -> None:
    assert of_worker(PodAddresses("m")) == of_worker(PodAddresses("m"))


def test_two_machines_use_different_addresses_for_one_name() -> None:
    assert of_worker(PodAddresses("m")) != of_worker(PodAddresses("n"))


def test_names_are_replaced_wherever_they_stand() -> None:
    book = PodAddresses("m")
    ip = of_worker(book)
    assert book.resolve("a", f"{NAME}:29500") == f"{ip}:29500"
    assert book.resolve("a", f"tcp://{NAME}:1,{NAME}.cluster.local:2") == f"tcp://{ip}:1,{ip}:2"
    assert book.resolve("a", f'{{"worker": ["{NAME}:1"]}}') == f'{{"worker": ["{ip}:1"]}}'


def test_other_names_stay_as_they_are() -> None:
    book = PodAddresses("m")
    for text in ("service.team.svc", "a.b.c.d.svc", "x.y.z.svc.example.com", "job-0.workers.team", "svc", ""):
        assert book.resolve("a", text) == text


def test_a_name_whose_address_is_taken_gets_the_next_and_keeps_it() -> None:
    book = PodAddresses("m")
    taken = candidate("m", "job-0.workers.team", 0)
    book._names[taken] = "another"
    first = of_worker(book)
    assert first == candidate("m", "job-0.workers.team", 1)
    del book._names[taken]
    assert of_worker(book, "b") == first


def test_an_address_is_free_again_when_nobody_holds_its_name() -> None:
    book = PodAddresses("m")
    of_worker(book, "a")
    book.resolve("b", NAME)
    book.release("a")
    assert book._by_name
    book.release("b")
    assert not book._by_name
    assert not book._names
    assert not book._holders


def test_releasing_what_was_never_held_changes_nothing() -> None:
    book = PodAddresses("m")
    of_worker(book, "a")
    book.release("b")
    assert book._by_name


@given(st.text(), st.text(), st.integers(0, 5))
def test_addresses_are_loopback_addresses_that_nobody_else_uses(machine: str, name: str, turn: int) -> None:
    address = ipaddress.IPv4Address(candidate(machine, name, turn))
    assert address.is_loopback
    assert address not in ipaddress.IPv4Network("127.0.0.0/16")
    assert address.packed[3] not in (0, 255)


@given(st.sets(st.integers(0, 10**6), min_size=1, max_size=200))
def test_all_live_pods_have_different_addresses(indexes: set[int]) -> None:
    book = PodAddresses("m")
    assert len({of_worker(book, "a", index) for index in indexes}) == len(indexes)


def test_two_addresses_get_two_ports_and_each_keeps_its_own() -> None:
    book = PodAddresses("m")
    one, other = of_worker(book, "a", 0), of_worker(book, "a", 1)
    (wanted,) = free_ports(1)
    first, second = book.port(one, wanted), book.port(other, wanted)
    assert first == wanted < second
    assert (book.port(one, wanted), book.port(other, wanted)) == (first, second)


def test_a_port_that_somebody_listens_on_is_passed_over() -> None:
    book = PodAddresses("m")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = taken.getsockname()[1]
        given_now = book.port(of_worker(book), wanted)
        assert given_now > wanted
    assert book.port(of_worker(book), wanted) == given_now


def test_a_port_is_free_again_when_nobody_holds_its_address() -> None:
    book = PodAddresses("m")
    (wanted,) = free_ports(1)
    book.port(of_worker(book, "a", 0), wanted)
    book.resolve("b", NAME)
    book.release("a")
    assert book.port(of_worker(book, "c", 1), wanted) > wanted
    book.release("b")
    assert book.port(of_worker(book, "d", 2), wanted) == wanted


def test_an_address_that_is_no_pods_keeps_the_port_that_it_asks_for() -> None:
    book = PodAddresses("m")
    (wanted,) = free_ports(1)
    book.port(of_worker(book), wanted)
    assert book.port("10.0.0.7", wanted) == wanted


def test_a_number_beyond_all_ports_stays_as_it_is() -> None:
    book = PodAddresses("m")
    assert book.port(of_worker(book), 99999) == 99999
