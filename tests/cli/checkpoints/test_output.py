"""What people see."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.cli.checkpoints.actions import prune_line, size, table, verified_lines
from holdfast.cli.checkpoints.operations import CheckpointInfo, PruneResult, State, VerifyResult

NOW = datetime(2026, 1, 2, 3, 6, 5, tzinfo=UTC)
SAVED = CheckpointInfo(
    epoch=12,
    attempt=1,
    path="attempt-1/checkpoint-epoch-12",
    state="valid",
    bytes=1 << 30,
    files=64,
    workers=2,
    saved_at="2026-01-02T03:04:05Z",
    resumes=True,
)
ASIDE = CheckpointInfo(epoch=9, attempt=0, path="quarantine/x", state="quarantined", reason="its content differs")


def test_a_table_says_which_one_a_restart_takes_and_which_is_the_best() -> None:
    within = structs.replace(SAVED, epoch=13, step=120)
    best = structs.replace(SAVED, metrics={"loss": 0.123456, "accuracy": 0.98}, best=True)
    assert table([within, best, ASIDE], NOW, wide=False, headers=True) == [
        "EPOCH   STEP   ATTEMPT   SIZE      FILES   SAVED    VALID             RESUME   LOSS     ACCURACY   BEST",
        "13      120    1         1.0 GiB   64      2m ago   yes               next     -        -",
        "12      -      1         1.0 GiB   64      2m ago   yes               next     0.1235   0.98       best",
        "9       -      0         -         -       -        no, quarantined            -        -",
    ]


def test_only_what_a_restart_may_take_is_valid() -> None:
    states: dict[State, str] = {
        "undigested": "yes, undigested",
        "superseded": "no, superseded",
        "unfinished": "no, unfinished",
        "damaged": "no, damaged",
    }
    found = [CheckpointInfo(epoch=1, attempt=0, path="p", state=state) for state in states]
    rows = table(found, NOW, wide=False, headers=False)
    assert [row.split(None, 6)[6].rstrip("- ") for row in rows] == list(states.values())


def test_a_reason_that_commands_a_terminal_is_made_harmless() -> None:
    lines = table(
        [CheckpointInfo(epoch=1, attempt=0, path="p", state="damaged", reason="\x1b[2Jx")],
        NOW,
        wide=True,
        headers=False,
    )
    assert "\x1b" not in lines[0]
    assert "\x1b" not in verified_lines(VerifyResult(saved=SAVED, damage=("\x1b[2J is missing",)))[1]


def test_a_verified_checkpoint_is_ok_damaged_or_left_out() -> None:
    assert verified_lines(VerifyResult(saved=SAVED)) == ["epoch 12 of attempt 1: ok, 1.0 GiB in 64 files"]
    assert verified_lines(VerifyResult(saved=SAVED, damage=("a is missing", "b is missing"))) == [
        "epoch 12 of attempt 1: damaged",
        "  a is missing",
        "  b is missing",
    ]
    unfinished = CheckpointInfo(epoch=3, attempt=0, path="p", state="unfinished", reason="no manifest")
    assert verified_lines(VerifyResult(saved=unfinished)) == ["epoch 3 of attempt 0: left out, unfinished"]


def test_deleted_checkpoints_are_listed_before_and_after() -> None:
    assert prune_line(PruneResult(saved=SAVED, deleted=False)) == "epoch 12 of attempt 1: would go, 1.0 GiB"
    assert prune_line(PruneResult(saved=ASIDE, deleted=True)) == "epoch 9 of attempt 0: deleted, -"


def test_sizes_read_as_people_write_them() -> None:
    assert [size(count) for count in (None, 0, 999, 1000, 1024, 10 << 20, 1500 << 20, 3 << 40)] == [
        "-",
        "0 B",
        "999 B",
        "1.0 KiB",
        "1.0 KiB",
        "10 MiB",
        "1.5 GiB",
        "3.0 TiB",
    ]


@given(st.integers(0, 1 << 62))
def test_a_size_is_short_and_about_right(count: int) -> None:
    number, unit = size(count).split()
    factor = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB").index(unit)
    assert abs(float(number) * factor - count) <= max(0.06 * count, factor * 0.06)
    assert len(number) <= 4
