"""A numpy script that knows two variables and nothing else of holdfast gains resume, writing in place."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from holdfast.checkpoints.manifest import checkpoint_name
from holdfast.local.up import LocalCluster
from tests.control_plane.waiting import eventually
from tests.frameworks.jobs import completed, logs
from tests.local.up.trainings import NAMESPACE, WITHIN_S, checkpoint, start, until_kept

EPOCHS, HELD = 6, 3
SCRIPT = f"""
import os, pathlib, time
import numpy as np

folder, resume_from = pathlib.Path(os.environ["CHECKPOINT_DIR"]), pathlib.Path(os.environ["RESUME_FROM"])
hold = pathlib.Path(os.environ.get("HOLD", "/nowhere"))
samples = np.random.default_rng(1).normal(size=(64, 8))
goal = samples @ np.arange(8.0)
weights, first = np.zeros(8), 1
if resume_from.exists():
    weights, first = np.load(resume_from / "weights.npy"), int((resume_from / "epoch").read_text()) + 1
print("begins with epoch", first, flush=True)
for epoch in range(first, {EPOCHS} + 1):
    weights = weights - 0.05 * samples.T @ (samples @ weights - goal) / len(samples)
    saved = folder / f"checkpoint-epoch-{{epoch}}"
    saved.mkdir()
    with open(saved / "weights.npy", "wb") as file:
        if epoch == {HELD} and hold.exists():
            file.write(b"half of it")
            file.flush()
            (hold / "pid").write_text(str(os.getpid()))
            time.sleep(600)
        np.save(file, weights)
    (saved / "epoch").write_text(str(epoch))
print("loss", float(np.sum((samples @ weights - goal) ** 2)).hex())
"""


def undisturbed(folder: Path) -> str:
    """Like a pod, it inherits no variables: some choose how numpy computes (OPENBLAS_CORETYPE)."""
    folder.mkdir()
    told = {"CHECKPOINT_DIR": str(folder), "RESUME_FROM": str(folder / "none")}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=told, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


async def test_killed_in_the_middle_of_a_save_it_goes_on_from_the_one_before(
    box: LocalCluster, data: Path, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    await asyncio.to_thread(hold.mkdir)
    job = await start(
        box,
        "plain",
        command=["python", "-c", SCRIPT],
        env=[{"name": "HOLD", "value": str(hold)}],
        checkpoint={"retention": EPOCHS},
    )
    volume = data / "volumes" / NAMESPACE / "plain-checkpoints" / NAMESPACE / "plain" / job.metadata.uid
    kept = await until_kept(str(volume), {})
    assert kept[0] == checkpoint_name(HELD - 1, 0)

    async def held() -> str:
        return (hold / "pid").read_text()

    victim = int(await eventually(held, bool, what="it is in the middle of a save", within_s=WITHIN_S))
    await asyncio.to_thread(hold.rename, tmp_path / "let go")
    os.kill(victim, signal.SIGKILL)
    ended = (await completed(box, "plain")).status
    assert ended
    assert ended.restart_count == 1
    assert (checkpoint(ended).resumed_from or "").endswith(f"/attempt-0/checkpoint-epoch-{HELD - 1}")
    said = (await logs(box, "plain"))[0].splitlines()
    assert said == [f"begins with epoch {HELD}", await asyncio.to_thread(undisturbed, tmp_path / "alone")]
