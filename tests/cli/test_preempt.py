"""holdfast preempt: it asks `holdfast up` to take a machine back, and says what to do on a cloud."""

from pathlib import Path

import pytest
import yaml

from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import PROVISIONED_INSTANCES
from tests.cli.lab import CommandLab, condition, holdfast

TITLE = "provisionedinstance.training.training.dcnlab.com"


async def machine(lab: CommandLab, name: str = "digits-r0-0-m0", status: JSON | None = None, **spec: object) -> str:
    """The uid of a new ProvisionedInstance."""
    body = {"metadata": {"name": name}, "spec": {"vmRef": {"name": "t4"}, **spec}}
    made = await lab.cluster.create(PROVISIONED_INSTANCES, body, namespace=lab.namespace)
    if status:
        await lab.cluster.patch_status(PROVISIONED_INSTANCES, made.metadata.key, {"status": status})
    return made.metadata.uid


async def asked(lab: CommandLab, name: str = "digits-r0-0-m0") -> str | None:
    found = await lab.cluster.get(PROVISIONED_INSTANCES, Key(lab.namespace, name))
    return found.metadata.annotations.get("holdfast.dev/preempt")


@pytest.mark.parametrize(
    ("options", "value", "said"),
    [
        ((), "", "its machine gets its notice, and is taken back when its notice is over"),
        (("--notice", "90s"), "90s", "its machine gets its notice, and is taken back 90s later"),
        (("--now",), "0s", "its machine is taken back at once"),
    ],
)
async def test_the_machine_is_asked_for_with_its_notice(
    embedded: CommandLab, options: tuple[str, ...], value: str, said: str
) -> None:
    await machine(embedded)
    assert await embedded.good("preempt", "digits-r0-0-m0", *options) == f"{TITLE}/digits-r0-0-m0: {said}\n"
    assert await asked(embedded) == value


async def test_the_name_may_be_written_with_its_kind_as_get_prints_it(embedded: CommandLab) -> None:
    await machine(embedded)
    (written,) = (await embedded.good("get", "pi", "-o", "name")).split()
    assert written == f"{TITLE}/digits-r0-0-m0"
    await embedded.good("preempt", written, "--now")
    assert await asked(embedded) == "0s"
    await embedded.good("preempt", "pi/digits-r0-0-m0")
    assert "sij/digits is no machine" in await embedded.refused("preempt", "sij/digits", code=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--notice", "soon"), "--notice soon is no duration: write one such as 30s or 2m"),
        (("--notice", "30s", "--now"), "leave --notice out, or --now"),
    ],
)
async def test_options_that_mean_nothing_are_refused(embedded: CommandLab, options: tuple[str, ...], said: str) -> None:
    await machine(embedded)
    assert said in await embedded.refused("preempt", "digits-r0-0-m0", *options, code=2)
    assert await asked(embedded) is None


@pytest.mark.parametrize(
    ("spec", "status", "said"),
    [
        ({"preemptible": False}, {}, "is an on-demand machine, which no cloud takes back"),
        ({}, {"conditions": [condition("Preempted")]}, "is preempted already: `holdfast get pi` shows"),
    ],
)
async def test_the_error_says_why_a_machine_is_not_taken_back(
    embedded: CommandLab, spec: JSON, status: JSON, said: str
) -> None:
    await machine(embedded, status=status, **spec)
    assert said in await embedded.refused("preempt", "digits-r0-0-m0")
    assert await asked(embedded) is None


async def test_a_machine_that_goes_anyway_is_not_asked_for(embedded: CommandLab) -> None:
    await machine(embedded)
    key = Key(embedded.namespace, "digits-r0-0-m0")
    held = {"metadata": {"finalizers": ["training.dcnlab.com/machine"]}}
    await embedded.cluster.patch(PROVISIONED_INSTANCES, key, held)
    await embedded.cluster.delete(PROVISIONED_INSTANCES, key)
    assert "is being deleted, and its machine with it" in await embedded.refused("preempt", "digits-r0-0-m0")


async def test_a_machine_that_is_not_there_is_named_with_the_command_that_lists_them(embedded: CommandLab) -> None:
    assert "`holdfast get pi -n trial` shows what is there" in await embedded.refused("preempt", "nobody")


async def test_on_another_cluster_the_clouds_own_command_is_named(embedded: CommandLab, tmp_path: Path) -> None:
    uid = await machine(embedded, zone="us-central1-b", project="my-project")
    elsewhere = yaml.safe_load(embedded.kubeconfig.read_text())
    for each in elsewhere["clusters"]:
        each["cluster"].pop("extensions")
    kubeconfig = tmp_path / "elsewhere"
    kubeconfig.write_text(yaml.safe_dump(elsewhere))
    done = await holdfast("preempt", "digits-r0-0-m0", "-n", embedded.namespace, KUBECONFIG=str(kubeconfig))
    assert done.code == 1
    assert (
        f"gcloud compute instances simulate-maintenance-event holdfast-{uid} --zone=us-central1-b --project=my-project"
        in done.err
    )
    assert await asked(embedded) is None
