"""Every lab, node and pod has addresses of its own."""

from ipaddress import IPv4Address, IPv4Network

from hypothesis import given
from hypothesis import strategies as st

from tests.nodes.lab import NODES
from tests.nodes.network import Addresses, remove_link
from tests.nodes.slots import MOST

LABS = st.integers(min_value=0, max_value=MOST - 1)
NUMBERS = st.integers(min_value=1, max_value=len(NODES))


@given(LABS, NUMBERS)
def test_all_of_a_lab_is_in_one_network(lab: int, number: int) -> None:
    here = Addresses(lab)
    everyone = IPv4Network(here.everyone)
    assert all(IPv4Address(one) in everyone for one in (here.host, here.dns, here.node(number), *here.pods(number)))


@given(LABS, LABS)
def test_the_networks_of_two_labs_are_apart(one: int, other: int) -> None:
    overlap = IPv4Network(Addresses(one).everyone).overlaps(IPv4Network(Addresses(other).everyone))
    assert overlap == (one == other)
    assert (Addresses(one).host_link == Addresses(other).host_link) == (one == other)


@given(LABS, NUMBERS, NUMBERS)
def test_no_pod_has_the_address_of_a_node_or_of_another_nodes_pod(lab: int, one: int, other: int) -> None:
    here = Addresses(lab)
    first, last = map(IPv4Address, here.pods(one))
    assert not any(first <= IPv4Address(taken) <= last for taken in (here.host, here.dns, here.node(other)))
    assert (here.pods(other)[0] == str(first)) == (one == other)


def test_a_link_that_is_not_there_is_removed_already() -> None:
    remove_link("holdfast-none")
