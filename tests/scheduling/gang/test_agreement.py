"""A queue that follows changes decides what a survey of everything decides, to the letter, whatever happens."""

from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from msgspec import structs

from holdfast.api.core.objects import Node, Pod
from holdfast.api.meta import Key
from holdfast.scheduling.gang import Gang, GangQueue, GangState
from holdfast.scheduling.ledger import Ledger
from tests.scheduling.gang.gangs import NOW, ago, apart, shape
from tests.scheduling.gang.survey import SurveyResult, survey
from tests.scheduling.nodes import node, pod

HOST = "kubernetes.io/hostname"
TAINT = {"key": "spot", "effect": "NoSchedule"}
TOLERATES = {"key": "spot", "operator": "Exists"}
RDMA = "rdma/hca"
SHAPES = (
    shape(1),
    shape(2),
    shape(1, asks={"cpu": "3"}),
    shape(1, asks={"cpu": "1"}, sidecar={"cpu": "50m"}),
    shape(asks={"cpu": "4"}),
    shape(asks={"memory": "20Gi"}),
    shape(1, asks={RDMA: 1}),
    shape(1, nodeSelector={"zone": "a"}),
    shape(2, nodeSelector={"zone": "a"}, tolerations=[TOLERATES]),
    shape(1, tolerations=[TOLERATES]),
    shape(1, affinity=apart(HOST)),
    shape(1, affinity=apart("zone")),
    shape(1, asks={RDMA: 1}, affinity=apart(HOST, "zone")),
    shape(16),
)
STATES: tuple[GangState, ...] = ("waiting", "waiting", "waiting", "keeping", "started")
SEQUENCES, STEPS = 250, 24


class World:
    """A ledger and the gangs, as events change them at random; a queue that follows, and a survey to compare with."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.ledger = Ledger()
        self.queue = GangQueue(self.ledger)
        self.queue.follow()
        self.now = NOW
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Pod] = {}
        self._gangs: dict[str, Gang] = {}
        self._number = 0
        for _ in range(5):
            self._put_node()

    def event(self) -> None:
        events: tuple[Callable[[], object], ...] = (
            *(self._put_node, self._put_pod, self._end_pod, self._put_gang, self._put_gang, self._put_gang),
            *(self._end_gang, self._reserve, self._bind_some),
            *(lambda: self.queue.catch_up(self._random.randrange(5)), self._remove_node),
        )
        self._random.choice(events)()
        if self._random.random() < 0.2:
            self.now += timedelta(seconds=self._random.choice([1, 300, 600, 601]))

    def compare(self) -> int:
        """One pass of each kind; how many gangs were refused."""
        patience_s, per_namespace = self._random.choice([30.0, 600.0]), self._random.choice([1, 1, 2])
        in_order = sorted(self._gangs.values(), key=lambda gang: (gang.shape.digest, gang.key))
        expected = survey(in_order, self.ledger, self.now, patience_s, per_namespace)
        if self._random.random() < 0.5 and self._start_all(expected):
            return 0
        result = self.queue.run_pass(self.now, patience_s, per_namespace, limit=self._random.choice([1, 3, 50, 50]))
        waiting = {gang.uid for gang in in_order if gang.state != "started"}
        assert result.decisions == {uid: expected.decisions[uid] for uid in result.decisions}
        assert result.is_complete == (result.decisions.keys() == waiting)
        if result.is_complete:
            assert dict(result.demand) == dict(expected.demand)
            assert result.held_nodes == frozenset(expected.held_nodes)
            self.ledger.set_gang_demand(result.demand, result.held_nodes)
        for uid, decision in result.decisions.items():
            if decision.admitted:
                gang = self._gangs[uid]
                self._gangs[uid] = structs.replace(gang, state="started", unbound=gang.workers)
        return sum(not decision.admitted for decision in result.decisions.values())

    def _start_all(self, expected: SurveyResult) -> bool:
        """Whether all were admitted without a guess at the nodes of others; the guess is made when it is asked for."""
        self.queue.catch_up(10**6)
        admitted = self.queue.start_all()
        if not admitted:
            return False
        assert {gang.uid for gang in self._gangs.values() if gang.state != "started"} == set(admitted)
        assert all(decision.admitted for decision in expected.decisions.values())
        for uid in admitted:
            self._gangs[uid] = structs.replace(self._gangs[uid], state="started", unbound=self._gangs[uid].workers)
        in_order = sorted(self._gangs.values(), key=lambda gang: (gang.shape.digest, gang.key))
        assert dict(self.queue.expected_demand()) == dict(survey(in_order, self.ledger, self.now).demand)
        return True

    def _put_node(self) -> None:
        name = f"n-{self._random.randrange(7)}"
        zone = self._random.choice(["a", "a", "b", ""])
        flags: dict[str, Any] = self._random.choice(
            [{}, {}, {}, {}, {"unschedulable": True}, {"ready": False}, {"taints": [TAINT]}]
        )
        room = {"pods": self._random.choice(["3", "9"]), RDMA: str(self._random.randrange(3))}
        gpus = self._random.choice([0, 1, 2, 4, 4, 8])
        new = node(name, gpus=gpus, labels={"zone": zone} if zone else {}, room=room, **flags)
        self.ledger.node_changed(self._nodes.get(name), new)
        self._nodes[name] = new

    def _remove_node(self) -> None:
        if self._nodes:
            name = self._random.choice(sorted(self._nodes))
            self.ledger.node_changed(self._nodes.pop(name), None)

    def _put_pod(self) -> None:
        name, on = f"p-{self._random.randrange(12)}", self._random.choice(["", *sorted(self._nodes)])
        asks = self._random.choice([{"gpu": "1"}, {"gpu": "2"}, {"cpu": "3"}, {RDMA: "1"}, {"memory": "40Gi"}])
        new = pod(name, on, phase=self._random.choice(["Running", "Running", "Succeeded"]), **asks)
        self.ledger.pod_changed(self._pods.get(name), new)
        self._pods[name] = new

    def _end_pod(self) -> None:
        if self._pods:
            self.ledger.pod_changed(self._pods.pop(self._random.choice(sorted(self._pods))), None)

    def _reserve(self) -> None:
        name = f"r-{self._random.randrange(3)}"
        if self._nodes and self._random.random() < 0.6:
            self.ledger.reserve(name, self._random.choice(sorted(self._nodes)), shape(1).requests, 1.0)
        else:
            self.ledger.release(name)

    def _put_gang(self) -> None:
        if self._gangs and self._random.random() < 0.3:
            before = self._gangs[self._random.choice(sorted(self._gangs))]
            key, uid = before.key, before.uid
        else:
            self._number += 1
            key = Key(self._random.choice(["ml", "ml", "vision"]), f"job-{self._number}")
            uid = f"uid-{self._number}"
        workers, state = self._random.randrange(1, 6), self._random.choice(STATES)
        nodes = tuple(self._random.sample(sorted(self._nodes), min(len(self._nodes), self._random.randrange(3))))
        gang = Gang(
            key=key,
            uid=uid,
            workers=workers,
            shape=self._random.choice(SHAPES),
            state=state,
            priority=self._random.choice([0, 0, 0, 10]),
            created_at=self._random.choice(["", ago(0), ago(60), ago(900), ago(3600)]),
            restarting_since=self._random.choice(["", ago(10), ago(3600)]) if state == "keeping" else "",
            unbound=self._random.randrange(workers + 1) if state == "started" else 0,
            nodes=nodes if state == "started" else (),
        )
        self._gangs[uid] = gang
        self.queue.put(gang)

    def _bind_some(self) -> None:
        started = [gang for gang in self._gangs.values() if gang.state == "started"]
        if started and self._nodes:
            gang = self._random.choice(started)
            unbound = self._random.randrange(gang.workers + 1)
            self._gangs[gang.uid] = structs.replace(gang, unbound=unbound, nodes=tuple(self._nodes)[:1])
            self.queue.put(self._gangs[gang.uid])

    def _end_gang(self) -> None:
        if self._gangs:
            uid = self._random.choice(sorted(self._gangs))
            del self._gangs[uid]
            self.queue.remove(uid)


def agree(seed: int) -> tuple[int, int]:
    """The passes that were compared, with many changes between them or few, and the refusals in them."""
    world, passes, refusals = World(Random(seed)), 0, 0
    for _ in range(STEPS):
        for _ in range(1 + seed % 7):
            world.event()
        refusals += world.compare()
        passes += 1
    return passes, refusals


@pytest.mark.parametrize("part", range(4))
def test_what_follows_changes_agrees_with_what_reads_everything(part: int) -> None:
    results = [agree(seed) for seed in range(part, SEQUENCES, 4)]
    assert sum(passes for passes, _ in results) >= SEQUENCES * STEPS // 4 - STEPS
    assert sum(refusals for _, refusals in results) > SEQUENCES * STEPS // 4, "there was something to decide"


def test_nothing_to_decide_needs_no_pass() -> None:
    world = World(Random(0))

    def needs_pass() -> bool:
        return world.queue.needs_pass

    world.ledger.node_changed(None, node("n-1", gpus=4))
    gang = Gang(key=Key("ml", "bert"), uid="bert", workers=2, shape=shape(1), created_at=ago(60))
    world.queue.put(gang)
    assert needs_pass()
    assert world.queue.run_pass(NOW, 600.0, 1).decisions["bert"].admitted
    assert not needs_pass(), "it is started, and what it needs is counted"
    world.ledger.pod_changed(None, pod("p", "n-1", gpu="1"))
    world.queue.put(structs.replace(gang, state="started", unbound=1, nodes=("n-1",)))
    assert not needs_pass(), "nobody waits for what it does not need any more"
    assert world.queue.is_outdated
    world.queue.put(structs.replace(gang, state="started", unbound=2))
    assert world.queue.expected_demand(), "a lost worker's room is kept"
    world.queue.put(Gang(key=Key("ml", "large"), uid="large", workers=9, shape=shape(1), created_at=ago(60)))
    assert not world.queue.run_pass(NOW, 600.0, 1).decisions["large"].admitted
    assert not needs_pass()
    world.ledger.node_changed(None, node("n-2", gpus=8))
    assert needs_pass(), "there is room for one who waits"
