"""Training loops that are killed at any moment and begin again where their checkpoint was: nothing lost or repeated."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import torch
from input_samples import record_file
from patience import slowly

import hemiola
from hemiola.cost.io import StoreModel
from hemiola.train.input import StoredSamples

RECORDS, BATCH, EPOCHS = 96, 4, 2
KILLS = int(os.environ.get("HEMIOLA_KILLS", "12"))


def loop(path: str, checkpoint: Path, finished: Path) -> None:
    """Train, and save what was trained on together with the loader's place, whole or not at all, at each step."""
    data = StoredSamples.of_records([path], 64, lambda parts: int.from_bytes(parts[0][:4], "little"))
    loader = hemiola.prefetch(
        data, store=StoreModel(0.001, 1e9), batch_size=BATCH, shuffle=True,
        generator=torch.Generator().manual_seed(3),
    )  # fmt: skip
    trained: list[list[int]] = []
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=False)
        trained = saved["trained"]
        loader.load_state_dict(saved["loader"])
    while loader.epoch < EPOCHS:
        for batch in loader:
            trained.append(batch.tolist())
            time.sleep(0.002)
            part = checkpoint.with_suffix(".part")
            torch.save({"trained": trained, "loader": loader.state_dict()}, part)
            part.replace(checkpoint)
    finished.touch()


def test_killed_at_random_moments(tmp_path: Path) -> None:
    path = str(record_file(tmp_path / "records", RECORDS, 64))
    checkpoint, finished = tmp_path / "checkpoint", tmp_path / "finished"
    chance, kills = random.Random(0), 0
    while not finished.exists():
        child = os.fork()
        if child == 0:
            try:
                loop(path, checkpoint, finished)
            finally:
                os._exit(0)
        if kills < KILLS:
            time.sleep(chance.uniform(0.0, slowly(0.15)))
            os.kill(child, signal.SIGKILL)
            kills += 1
        os.waitpid(child, 0)
        if kills >= KILLS and finished.exists():
            break
        if finished.exists() and kills < KILLS:  # done too soon: begin anew
            finished.unlink()
            _whole(checkpoint)
            checkpoint.unlink()
    _whole(checkpoint)


def _whole(checkpoint: Path) -> None:
    """Every sample once in each epoch."""
    trained = torch.load(checkpoint, weights_only=False)["trained"]
    per_epoch = RECORDS // BATCH
    epochs = [trained[i : i + per_epoch] for i in range(0, len(trained), per_epoch)]
    assert len(epochs) == EPOCHS
    for epoch in epochs:
        assert sorted(n for batch in epoch for n in batch) == list(range(RECORDS))
