"""The page lists exactly the metrics that are exported, with type and labels."""

import pytest
from prometheus_client import CollectorRegistry

from tests.monitoring.catalogue import Described, exposed, listed
from tests.monitoring.samples import agent_registry, operator_registry

NOTHING = Described("", frozenset())


def scraped_twice(registry: CollectorRegistry) -> dict[str, Described]:
    """Labels come with the first values."""
    list(registry.collect())
    return exposed(registry.collect())


@pytest.fixture(scope="module")
def exported() -> dict[str, Described]:
    """Of operator and agent; what both have is shown by one of them with its labels."""
    operator, agent = scraped_twice(operator_registry()), scraped_twice(agent_registry())
    assert all(agent[name].type == operator[name].type for name in agent.keys() & operator.keys())
    both = {
        name: max(operator.get(name, NOTHING), agent.get(name, NOTHING), key=lambda each: len(each.labels))
        for name in operator.keys() & agent.keys()
    }
    return {**operator, **agent, **both}


def test_the_page_lists_every_metric_with_its_type_and_its_labels(exported: dict[str, Described]) -> None:
    assert listed() == exported


def test_no_metric_is_counted_by_an_object_that_may_be_one_of_thousands(exported: dict[str, Described]) -> None:
    """Names of single jobs are in the series of kinds that have an option against that, or of which there are few."""
    named = {name for name, each in exported.items() if {"training_job", "spot_instance_job", "node"} & each.labels}
    assert {name.partition("_")[0] for name in named} == {"trainingjob", "spotinstancejob", "holdfast"}
    assert {name for name in named if name.startswith("holdfast")} == {"holdfast_node_agent_ready"}
