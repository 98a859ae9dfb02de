"""A machine that is no longer ready is marked, and loses its pods."""

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.protocol import DeleteOptions
from holdfast.cluster.resources import PODS

from .engine import Engine
from .kinds import NODES, Document
from .kinds import PODS as WHOLE_PODS
from .pods import pod
from .pool import Pool
from .waiting import gone, until

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"


def effects(node: Document) -> set[str]:
    return {taint["effect"] for taint in node.spec.get("taints", ()) if taint["key"] == NOT_READY}


def has(it: Pod, condition: str, status: str) -> bool:
    return any(c.type == condition and c.status == status for c in it.status.conditions)


async def test_a_pod_tolerates_a_lost_machine_for_five_minutes_unless_it_says_otherwise(pool: Pool) -> None:
    made = await pool.cluster.create(WHOLE_PODS, pod("one", pool.name), namespace=pool.name)
    given = {t["key"]: t["tolerationSeconds"] for t in made.spec["tolerations"]}
    assert given == {NOT_READY: 300, UNREACHABLE: 300}
    hasty = {"key": NOT_READY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}
    made = await pool.cluster.create(WHOLE_PODS, pod("two", pool.name, tolerations=[hasty]), namespace=pool.name)
    given = {t["key"]: t["tolerationSeconds"] for t in made.spec["tolerations"]}
    assert given == {NOT_READY: 0, UNREACHABLE: 300}


async def test_a_machine_that_is_not_ready_is_tainted_and_loses_its_pods(engine: Engine, pool: Pool) -> None:
    # Where no machine is ready the fault is taken to be elsewhere, and nothing is evicted: hence the others.
    for suffix in ("b", "c"):
        await pool.add(suffix, labels={"role": "bystander"})
    node = await pool.add("a", labels={"role": "victim"})
    selector = {"nodeSelector": {"role": "victim", "kubernetes.io/hostname": node}}
    hasty = {"key": NOT_READY, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}
    for name, tolerations in (("hasty", [hasty]), ("patient", [])):
        body = pod(name, pool.name, tolerations=tolerations, **selector)
        await pool.cluster.create(PODS, body, namespace=pool.name)
    await pool.running(2)
    await engine.break_node(node)
    await until(pool.cluster, NODES, Key("", node), lambda n: effects(n) == {"NoSchedule", "NoExecute"}, "is tainted")
    evicted = await until(
        pool.cluster, PODS, Key(pool.name, "hasty"), lambda p: p.metadata.deletion_timestamp, "is being deleted"
    )
    assert has(evicted, "DisruptionTarget", "True")
    patient = await pool.cluster.get(PODS, Key(pool.name, "patient"))
    assert not patient.metadata.deletion_timestamp
    assert patient.status.phase == "Running"


async def test_a_pod_on_a_lost_machine_goes_only_when_forced(engine: Engine, pool: Pool) -> None:
    node = await pool.add()
    key = Key(pool.name, "one")
    await pool.cluster.create(PODS, pod("one", pool.name, terminationGracePeriodSeconds=20), namespace=pool.name)
    await pool.running(1)
    await engine.break_node(node)
    await until(pool.cluster, NODES, Key("", node), lambda n: "NoSchedule" in effects(n), "is tainted")
    await pool.cluster.delete(PODS, key)
    asked = await pool.cluster.get(PODS, key)
    assert asked.metadata.deletion_timestamp
    assert asked.metadata.deletion_grace_period_seconds == 20
    await pool.cluster.delete(PODS, key, DeleteOptions(grace_period_s=5))
    assert (await pool.cluster.get(PODS, key)).metadata.deletion_grace_period_seconds == 5
    await pool.cluster.delete(PODS, key, DeleteOptions(uid=asked.metadata.uid, grace_period_s=0))
    await gone(pool.cluster, PODS, key)


async def test_a_pod_on_no_machine_goes_at_once(pool: Pool) -> None:
    made = await pool.cluster.create(PODS, pod("one", pool.name), namespace=pool.name)
    await pool.cluster.delete(PODS, made.metadata.key)
    assert (await pool.cluster.list(PODS, namespace=pool.name)).items == ()
