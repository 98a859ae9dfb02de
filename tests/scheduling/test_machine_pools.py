"""Which zone is asked for a machine, and how long zones rest that had none."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.meta import ObjectMeta
from holdfast.api.spotinstancevm import SpotInstanceVM, SpotInstanceVMSpec
from holdfast.scheduling.machine_pools import (
    FIRST_PAUSE_S,
    FORGOTTEN_AFTER_S,
    LONGEST_PAUSE_S,
    PROBE_S,
    TAKEN_BACK_S,
    MachinePools,
    MachineRequest,
    Resting,
    Scope,
    ZoneChoice,
    ZoneRefusal,
    machine_request,
)

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
HERE, NEXT, FAR = "us-central1-a", "us-central1-b", "europe-west4-a"
WISH = MachineRequest(
    template="t/1", project="lab-project", zones=(HERE, NEXT, FAR), machine_type="n1-standard-4", gpu_type="t4"
)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def refusal(scope: Scope = "zone", said: str = "none left") -> ZoneRefusal:
    return ZoneRefusal(scope=scope, reason="Stockout", said=said)


def pools() -> MachinePools:
    """With pauses of their full length."""
    return MachinePools(jitter=lambda: 0.0)


def zone_of(answer: ZoneChoice | Resting) -> str:
    return answer.zone if isinstance(answer, ZoneChoice) else "-"


def chosen(pools: MachinePools, seconds: float, *, by: str = "m", wanted: MachineRequest = WISH) -> str:
    return zone_of(pools.choose(wanted, at(seconds), by=by))


def resting(pools: MachinePools, seconds: float, *, by: str = "m", wanted: MachineRequest = WISH) -> Resting:
    answer = pools.choose(wanted, at(seconds), by=by)
    assert isinstance(answer, Resting)
    return answer


@pytest.mark.parametrize(
    ("scope", "expected"),
    [("zone", NEXT), ("region", FAR), ("global", "-"), ("template", "-"), ("template-zone", NEXT)],
)
def test_a_refusal_rules_out_what_its_scope_says(scope: Scope, expected: str) -> None:
    asked = pools()
    assert chosen(asked, 0) == HERE
    asked.refused(WISH, HERE, refusal(scope), at(1), by="m")
    assert chosen(asked, 2) == expected


def other(**changes: object) -> MachineRequest:
    return structs.replace(WISH, **changes)


@pytest.mark.parametrize(
    ("scope", "wanted", "expected"),
    [
        ("zone", other(machine_type="n1-standard-8"), HERE),
        ("zone", other(gpu_type="l4"), HERE),
        ("zone", other(spot=False), HERE),
        ("zone", other(project="their-project"), HERE),
        ("zone", other(template="t/2"), NEXT),
        ("global", other(machine_type="n1-standard-8"), HERE),
        ("global", other(template="t/2"), "-"),
        ("template", other(template="t/2"), HERE),
        ("template", other(machine_type="n1-standard-8"), "-"),
    ],
)
def test_other_pools_are_not_ruled_out(scope: Scope, wanted: MachineRequest, expected: str) -> None:
    asked = pools()
    asked.refused(WISH, HERE, refusal(scope), at(0), by="m")
    assert chosen(asked, 1, wanted=wanted) == expected


def test_pauses_double_up_to_ten_minutes() -> None:
    asked, now_s, lengths = pools(), 0.0, []
    wanted = structs.replace(WISH, zones=(HERE,))
    for _ in range(7):
        assert chosen(asked, now_s, wanted=wanted) == HERE
        asked.refused(wanted, HERE, refusal(), at(now_s), by="m")
        until_s = (resting(asked, now_s, wanted=wanted).until - START).total_seconds()
        lengths.append(until_s - now_s)
        now_s = until_s
    assert lengths == [30, 60, 120, 240, 480, 600, 600]
    assert (lengths[0], lengths[-1]) == (FIRST_PAUSE_S, LONGEST_PAUSE_S)


def test_a_machine_that_was_made_ends_the_pause_and_the_doubling() -> None:
    asked = pools()
    asked.refused(WISH, HERE, refusal(), at(0), by="m")
    asked.refused(WISH, HERE, refusal(), at(31), by="m")
    asked.launched(WISH, HERE)
    assert chosen(asked, 32) == HERE
    asked.refused(WISH, HERE, refusal(), at(33), by="m")
    assert (chosen(asked, 62), chosen(asked, 63)) == (NEXT, HERE)


def test_a_template_whose_machines_are_of_no_use_in_a_zone_rests_there_longer_each_time_until_one_gets_ready() -> None:
    """That the cloud makes them says nothing: each of them costs money all the same."""
    asked, wanted = pools(), structs.replace(WISH, zones=(HERE,))
    asked.refused(wanted, HERE, refusal("template-zone"), at(0), by="m")
    assert chosen(asked, 1, wanted=structs.replace(wanted, template="u/1")) == HERE, "others' machines may do well"
    assert (chosen(asked, 29, wanted=wanted), chosen(asked, 30, wanted=wanted)) == ("-", HERE)
    asked.launched(wanted, HERE)
    asked.refused(wanted, HERE, refusal("template-zone"), at(330), by="m")
    assert (chosen(asked, 389, wanted=wanted), chosen(asked, 390, wanted=wanted)) == ("-", HERE)
    asked.launched(wanted, HERE)
    asked.ready(wanted, HERE)
    asked.refused(wanted, HERE, refusal("template-zone"), at(700), by="m")
    assert (chosen(asked, 729, wanted=wanted), chosen(asked, 730, wanted=wanted)) == ("-", HERE)
    assert (
        "us-central1-a (asked at 2026-03-01T12:11:40Z: none left)" in resting(asked, 731, by="n", wanted=wanted).message
    )


def test_what_was_said_before_the_clock_was_put_back_counts_for_nothing() -> None:
    asked = pools()
    asked.refused(WISH, HERE, refusal("global"), at(7200), by="m")
    asked.taken_back(WISH, HERE, at(7200))
    assert chosen(asked, 7195) == "-", "clocks are put right by a little all the time"
    assert chosen(asked, 0) == HERE


def test_a_refusal_of_long_ago_counts_for_nothing() -> None:
    asked = pools()
    asked.refused(WISH, HERE, refusal(), at(0), by="m")
    later = 31 + FORGOTTEN_AFTER_S
    assert (chosen(asked, later, by="one"), chosen(asked, later, by="two")) == (HERE, HERE)
    asked.refused(WISH, HERE, refusal(), at(later), by="one")
    assert chosen(asked, later + FIRST_PAUSE_S, by="one") == HERE


def test_many_refusals_of_requests_that_were_made_together_count_once() -> None:
    asked = pools()
    for number in range(64):
        asked.refused(WISH, HERE, refusal(), at(number / 100), by=f"m{number}")
    assert chosen(asked, FIRST_PAUSE_S) == HERE


def test_after_a_pause_one_is_sent_ahead_and_the_others_follow_its_answer() -> None:
    asked = pools()
    wanted = structs.replace(WISH, zones=(HERE,))
    asked.refused(wanted, HERE, refusal(), at(0), by="m")
    assert chosen(asked, 30, by="first", wanted=wanted) == HERE
    assert chosen(asked, 31, by="second", wanted=wanted) == "-"
    assert chosen(asked, 31, by="first", wanted=wanted) == HERE, "asked again, it is told the same"
    assert "another job asks us-central1-a again now" in resting(asked, 32, by="second", wanted=wanted).message
    asked.launched(wanted, HERE)
    assert chosen(asked, 33, by="second", wanted=wanted) == HERE
    assert chosen(asked, 33, by="third", wanted=wanted) == HERE


@pytest.mark.parametrize("ends_s", [31, 30 + PROBE_S])
def test_a_probe_without_an_answer_holds_up_no_other_request(ends_s: float) -> None:
    asked = pools()
    wanted = structs.replace(WISH, zones=(HERE,))
    asked.refused(wanted, HERE, refusal(), at(0), by="m")
    assert chosen(asked, 30, by="first", wanted=wanted) == HERE
    if ends_s < PROBE_S:
        asked.released("first")
    assert chosen(asked, ends_s, by="second", wanted=wanted) == HERE


def test_one_that_was_sent_ahead_and_asks_again_and_again_gets_no_more_time() -> None:
    """Its machine's object may be refused for ever, as by a quota of its namespace."""
    asked, wanted = pools(), structs.replace(WISH, zones=(HERE,))
    asked.refused(wanted, HERE, refusal(), at(0), by="m")
    for seconds in range(30, 30 + int(PROBE_S), 10):
        assert chosen(asked, seconds, by="first", wanted=wanted) == HERE
        assert chosen(asked, seconds, by="second", wanted=wanted) == "-"
    assert chosen(asked, 30 + PROBE_S, by="second", wanted=wanted) == HERE
    assert chosen(asked, 31 + PROBE_S, by="first", wanted=wanted) == "-"


def test_a_request_with_another_zone_does_not_wait_for_the_probe() -> None:
    asked = pools()
    asked.refused(WISH, HERE, refusal(), at(0), by="m")
    assert (chosen(asked, 30, by="first"), chosen(asked, 30, by="second")) == (HERE, NEXT)


def test_a_zone_that_has_just_taken_a_machine_back_is_asked_last() -> None:
    asked = pools()
    asked.taken_back(WISH, HERE, at(0))
    asked.taken_back(WISH, FAR, at(5))
    assert chosen(asked, 6) == NEXT
    asked.refused(WISH, NEXT, refusal(), at(6), by="m")
    assert chosen(asked, 7) == HERE, "of two, the one that did so first"
    assert chosen(asked, TAKEN_BACK_S + 5, wanted=structs.replace(WISH, zones=(HERE, FAR))) == HERE
    asked.launched(WISH, NEXT)
    assert chosen(asked, TAKEN_BACK_S + 5) == HERE


def test_the_message_says_where_when_what_and_when_again() -> None:
    asked = pools()
    asked.refused(WISH, HERE, refusal("region", "quota T4 is 0"), at(0), by="m")
    asked.refused(WISH, FAR, refusal(said="no resources"), at(2), by="m")
    it = resting(asked, 3)
    assert it.message == (
        "no machine to be had: region us-central1 (asked in us-central1-a at 2026-03-01T12:00:00Z: quota T4 is 0); "
        "europe-west4-a (asked at 2026-03-01T12:00:02Z: no resources); next try at 2026-03-01T12:00:30Z"
    )
    assert (it.until, it.reason) == (at(30), "Stockout")
    assert resting(asked, 20) == it, "asked again, nothing is to be written"


@pytest.mark.parametrize(
    ("scope", "text"),
    [
        ("global", "project lab-project (asked in us-central1-a at 2026-03-01T12:00:00Z: no)"),
        ("template", "this template (asked in us-central1-a at 2026-03-01T12:00:00Z: no)"),
    ],
)
def test_what_rules_out_all_zones_is_said_once(scope: Scope, text: str) -> None:
    asked = pools()
    asked.refused(WISH, HERE, refusal(scope, "no"), at(0), by="m")
    assert resting(asked, 1).message == f"no machine to be had: {text}; next try at 2026-03-01T12:00:30Z"


@given(
    jitter=st.floats(0, 1),
    refusals=st.lists(
        st.tuples(st.sampled_from(WISH.zones), st.sampled_from(["zone", "region", "global"]), st.floats(0, 900)),
        max_size=12,
    ),
)
def test_whatever_was_refused_no_answer_is_in_the_past_and_no_wait_is_longer_than_the_longest_pause(
    jitter: float, refusals: list[tuple[str, Scope, float]]
) -> None:
    asked, now_s = MachinePools(jitter=lambda: jitter), 0.0
    for zone, scope, after_s in refusals:
        asked.refused(WISH, zone, refusal(scope), at(now_s), by="m")
        answer = asked.choose(WISH, at(now_s), by="m")
        if isinstance(answer, Resting):
            assert at(now_s) < answer.until <= at(now_s + LONGEST_PAUSE_S)
            then = asked.choose(WISH, answer.until, by="m")
            assert isinstance(then, ZoneChoice) or then.until > answer.until
            asked.released("m")
        now_s += after_s


def test_a_request_without_an_answer_does_not_end_the_probe_of_another() -> None:
    asked = pools()
    wanted = structs.replace(WISH, zones=(HERE,))
    asked.refused(wanted, HERE, refusal(), at(0), by="m")
    assert chosen(asked, 30, by="first", wanted=wanted) == HERE
    asked.released("second")
    assert chosen(asked, 31, by="second", wanted=wanted) == "-"


@pytest.mark.parametrize(("gpu", "expected"), [({"type": "nvidia-l4", "count": 2}, "nvidia-l4"), (None, "")])
def test_a_template_says_which_machine_is_wanted(gpu: dict[str, object] | None, expected: str) -> None:
    gcp = {"project": "lab-project", "zone": HERE, "machineType": "n1-standard-4"}
    spec = {"vmImage": "images/gpu", "gcp": gcp, "zones": [NEXT], **({"gpu": gpu} if gpu else {})}
    template = SpotInstanceVM(
        metadata=ObjectMeta(name="t", uid="u", generation=3), spec=msgspec.convert(spec, SpotInstanceVMSpec)
    )
    assert machine_request(template, spot=False) == MachineRequest(
        template="u/3",
        project="lab-project",
        zones=(HERE, NEXT),
        machine_type="n1-standard-4",
        gpu_type=expected,
        spot=False,
    )
