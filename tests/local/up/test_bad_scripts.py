"""A training that saves and tells nonsense: what can't be used is left out and told, and it trains to its end."""

from pathlib import Path

from holdfast.local.up import LocalCluster
from tests.frameworks.jobs import completed
from tests.local.up.trainings import NAMESPACE, checkpoint, kept, start, told, until

# Two checkpoints that can't be kept, one that can; nonsense before and after every epoch that is told.
SCRIPT = r"""
import os, pathlib, time

secret = pathlib.Path(os.environ["HOME"], "secret")
secret.write_text("of another job")

def save(epoch, fill):
    partial = pathlib.Path(os.environ["CHECKPOINT_DIR"], "partial")
    partial.mkdir()
    (partial / "weights").write_text("good")
    fill(partial)
    partial.rename(partial.with_name(f"checkpoint-epoch-{epoch}"))

save(1, lambda folder: (folder / "link").symlink_to(secret))
save(2, lambda folder: (folder / "..\\..\\up").write_text("bad"))
save(3, lambda folder: None)
nonsense = [
    b"no json at all", b"[1, 2", b"[]", b"null", b'"epoch"', b"{}", b"\xff\xfe\x00", b"{" * 5000, b"x" * 1_000_000,
    b'{"epoch": -1, "loss": 1}', b'{"epoch": NaN}', b'{"epoch": 1e300}', b'{"epoch": "7"}', b'{"epoch": 2.5}',
    b'{"epoch": 1, "loss": NaN, "accuracy": Infinity}',
    b'{"epoch": 1' + b"".join(b', "m%d": 1' % number for number in range(500)) + b"}",
]
for epoch in range(1, 4):
    with open(os.environ["PROGRESS_FILE"], "ab") as progress:
        progress.write(b"\n".join(nonsense) + b"\n")
        progress.write(b'{"epoch": %d, "epochs": 3, "loss": 0.%d, "accuracy": NaN}\n' % (epoch, epoch))
    time.sleep(0.5)
hold = pathlib.Path(os.environ["HOLD"])
while hold.exists():
    time.sleep(0.1)
"""


async def test_links_that_lead_away_odd_names_and_nonsense_for_progress(
    box: LocalCluster, data: Path, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    job = await start(
        box,
        "nonsense",
        command=["python", "-c", SCRIPT],
        env=[{"name": "HOLD", "value": str(hold)}],
        checkpoint={"retention": 10},
    )
    away = await told(box, "nonsense", "CheckpointFailed", "leads out of the checkpoint's folder")
    odd = await told(box, "nonsense", "CheckpointFailed", "holds a backslash")
    assert "checkpoint-epoch-1" in away.message
    assert "checkpoint-epoch-2" in odd.message
    seen = await until(box, "nonsense", lambda it: it.current_epoch == 3, "tells its third epoch")
    assert seen.total_epochs == 3
    assert seen.metrics["loss"] == 0.3
    assert "accuracy" not in seen.metrics
    hold.unlink()
    ended = (await completed(box, "nonsense")).status
    assert ended
    assert ended.restart_count == 0
    assert checkpoint(ended).last_epoch == 3
    volume = data / "volumes" / NAMESPACE / "nonsense-checkpoints" / NAMESPACE / "nonsense" / job.metadata.uid
    assert [name.epoch for name in await kept(str(volume), {})] == [3]
