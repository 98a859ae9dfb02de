"""Logs: kept within bounds, read by lines, followed; and the last words that go into the status."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.api.meta import Key
from holdfast.cluster.errors import BadRequest, NotFound
from holdfast.local.kubelet import logs
from holdfast.local.kubelet.logs import termination_message
from holdfast.local.kubelet.supervisor import RotatingLog
from tests.local.kubelet.bench import Bench, python, shell, terminated

KEPT_AT_MOST = 2 * 10_000_000


async def test_a_hundred_megabytes_in_one_line_take_no_more_space_than_the_limit(bench: Bench) -> None:
    code = "import sys\nfor _ in range(1600): sys.stdout.write('x' * 65536)\nsys.stdout.write('end')"
    pod = await bench.ended(python(code))
    assert pod.status["phase"] == "Succeeded"
    sizes = [path.stat().st_size for path in (bench.folder(pod) / "logs" / "main").iterdir()]
    assert sum(sizes) <= KEPT_AT_MOST
    assert (await bench.log(pod.metadata.key, tail_lines=1)).endswith("xend")


async def test_standard_output_and_error_keep_their_order(bench: Bench) -> None:
    code = "import os\nfor n in range(100): os.write(1 + n % 2, f'{n}\\n'.encode())"
    pod = await bench.ended(python(code))
    assert (await bench.log(pod.metadata.key)).split() == [str(n) for n in range(100)]


async def test_a_log_is_read_from_its_end_and_up_to_a_size(bench: Bench) -> None:
    pod = await bench.ended(shell("seq 10"))
    assert await bench.log(pod.metadata.key, tail_lines=2) == "9\n10\n"
    assert await bench.log(pod.metadata.key, limit_bytes=3) == "1\n2"


async def test_each_start_of_a_container_has_a_log_of_its_own(bench: Bench) -> None:
    script = 'echo "$HOME" | wc -l; test -e "$HOME/again" && echo second && exit 0; touch "$HOME/again"; exit 1'
    pod = await bench.ended(shell(script), restartPolicy="OnFailure")
    assert await bench.log(pod.metadata.key) == "1\nsecond\n"


async def test_the_log_of_a_container_that_is_not_there_is_a_bad_request(bench: Bench) -> None:
    pod = await bench.ended(shell("true"))
    with pytest.raises(BadRequest, match="container other is not valid for pod p: it has main"):
        await bench.log(pod.metadata.key, container="other")
    with pytest.raises(NotFound):
        await bench.log(Key(bench.namespace, "none"))


async def test_a_log_is_followed_to_the_end_of_its_pod(bench: Bench) -> None:
    key = await bench.start(shell('echo one; until test -e "$HOME/go"; do sleep 0.05; done; echo two'))
    pod = await bench.phase(key, "Running")
    seen = b""
    async for chunk in bench.machine.follow_log(key):
        seen += chunk
        if seen == b"one\n":
            (bench.folder(pod) / "containers/main/work/go").touch()
    assert seen == b"one\ntwo\n"


async def test_the_termination_message_is_what_the_container_wrote(bench: Bench) -> None:
    pod = await bench.ended(shell("echo from the path > /dev/termination-log"))
    assert terminated(pod)["message"] == "from the path\n"
    pod = await bench.ended(shell('echo by the variable > "$HOLDFAST_TERMINATION_LOG"'), name="second")
    assert terminated(pod)["message"] == "by the variable\n"


async def test_a_termination_path_of_ones_own_is_understood(bench: Bench) -> None:
    pod = await bench.ended(shell("echo here > /tmp/last-words", terminationMessagePath="/tmp/last-words"))
    assert terminated(pod)["message"] == "here\n"


async def test_without_a_message_the_end_of_a_failed_log_stands_in_where_the_policy_says_so(bench: Bench) -> None:
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    pod = await bench.ended(shell("echo boom >&2; exit 1", **policy))
    assert terminated(pod)["message"] == "boom\n"
    pod = await bench.ended(shell("echo fine", **policy), name="second")
    assert "message" not in terminated(pod)


@pytest.mark.parametrize(("policy", "code", "expected"), [("File", 1, ""), ("FallbackToLogsOnError", 0, "")])
def test_the_log_stands_in_for_nothing_else(tmp_path: Path, policy: str, code: int, expected: str) -> None:
    (tmp_path / "log").write_text("line\n")
    assert termination_message(tmp_path / "none", tmp_path / "log", policy, code) == expected


def test_a_termination_message_is_cut_at_four_kibibytes(tmp_path: Path) -> None:
    (tmp_path / "message").write_text("x" * 5000)
    assert termination_message(tmp_path / "message", tmp_path / "log", "File", 0) == "x" * 4096


def test_the_log_that_stands_in_is_cut_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n".join(f"{n:0100}" for n in range(1000)))
    message = termination_message(tmp_path / "none", tmp_path / "log", "FallbackToLogsOnError", 1)
    assert len(message) == 2048
    assert message.endswith(f"{999:0100}")


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n"]), max_size=30).map(b"".join), st.integers(0, 10))
def test_the_tail_is_the_last_lines(data: bytes, lines: int) -> None:
    expected = data.splitlines(keepends=True)[-lines:] if lines else []
    assert logs.tail_log(data, lines) == b"".join(expected)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=50)), st.integers(1, 40))
def test_a_rotated_log_holds_the_end_of_the_output_in_bounds(chunks: list[bytes], limit: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "0.log"
        log = RotatingLog(str(path), limit)
        for chunk in chunks:
            log.write(chunk)
        kept = logs.read_log(path)
        log.close()
        assert b"".join(chunks).endswith(kept)
        assert len(kept) <= 2 * limit
        assert path.stat().st_size <= limit
        assert bool(kept) == any(chunks)


def test_a_full_disk_costs_output_and_raises_nothing() -> None:
    log = RotatingLog("/dev/full", 10)
    log.write(b"lost")
    log.close()


async def test_following_passes_over_a_rotation_without_losing_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    log = RotatingLog(str(path), 8)
    log.write(b"first\n")
    seen: list[bytes] = []
    async for chunk in logs.follow_log(path, lambda: len(seen) == 2):
        seen.append(chunk)
        if len(seen) == 1:
            log.write(b"second\n")
    log.close()
    assert seen == [b"first\n", b"second\n"]


async def test_following_ends_where_there_never_was_a_log(tmp_path: Path) -> None:
    assert b"".join([chunk async for chunk in logs.follow_log(tmp_path / "0.log", lambda: True)]) == b""


def test_only_the_last_two_starts_are_kept(tmp_path: Path) -> None:
    for number in range(4):
        path = logs.log_file(tmp_path, "main", number)
        path.parent.mkdir(exist_ok=True)
        path.touch()
        logs.forget_old(tmp_path, "main", number)
    assert sorted(path.name for path in (tmp_path / "main").iterdir()) == ["2.log", "3.log"]
    assert logs.newest(tmp_path, "main") == tmp_path / "main" / "3.log"
