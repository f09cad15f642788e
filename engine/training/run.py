"""From a model to a head and a model with it: the steps of `skippy-engine train-head`."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.errors import ModelFileError
from engine.model.file import ModelFile
from engine.model.nextn import block_shapes, check_source, read_head, with_nextn
from engine.model.tokenizer import Tokenizer
from engine.training.backend import choose_device
from engine.training.chat import chat_pieces
from engine.training.decoder import Trunk
from engine.training.generate import Writer, script_of
from engine.training.head import Arrays
from engine.training.settings import RunFolder, TrainingSettings
from engine.training.trainer import Clock, Report, Trainer, write_texts


def train_head(
    source: ModelFile,
    folder: RunFolder,
    settings: TrainingSettings,
    *,
    device: str | None = None,
    start: Path | None = None,
    report: Report,
) -> Path:
    """Train a head for `source` in `folder` and return the file of the model with it.

    `start` is a head to begin with. A folder that holds a part of the run is gone on with. Raises
    ArchitectureRefused, ModelFileError, UsageError.
    """
    check_source(source)
    arrays = None if start is None else _starting_head(start, source)
    chosen = choose_device(device)
    dtype = torch.bfloat16 if chosen.startswith("cuda") else torch.float32
    torch.set_float32_matmul_precision("high")
    trunk = Trunk(source, device=chosen, dtype=dtype, positions=settings.rows + 1)
    report(f"{source.name}, {trunk.shape.layers} layers, on {chosen}")
    with Tokenizer(source.path) as tokenizer:
        script = script_of(chat_pieces(source, tokenizer), tokenizer, chosen)
    clock = Clock(settings.minutes, _seconds_spent(folder))
    texts = write_texts(trunk, Writer(trunk, script), folder, settings, clock, report)
    trainer = Trainer(trunk, texts, settings, arrays)
    if folder.checkpoint.exists():
        trainer.restore(folder.checkpoint)
        report(f"going on from step {trainer.step}")
    trainer.run(folder, clock, report)
    return _write_model(source, folder)


def _seconds_spent(folder: RunFolder) -> float:
    if not folder.checkpoint.exists():
        return 0.0
    return float(torch.load(folder.checkpoint, map_location="cpu", weights_only=True)["seconds"])


def _starting_head(path: Path, source: ModelFile) -> Arrays:
    arrays = read_head(path)
    if {name: array.shape for name, array in arrays.items()} != block_shapes(source):
        raise ModelFileError(f"{path} is no head for {source.name}", hint="give one that was trained for it")
    return arrays


def _write_model(source: ModelFile, folder: RunFolder) -> Path:
    name = f"{source.path.stem}-MTP"
    target = folder.path / f"{name}.gguf"
    with target.open("wb") as file:
        with_nextn(source, folder.head, name).write(file)
    return target
