"""Checkpoints that resume exactly: everything that a run's next batch depends on. Imports torch and the loop."""

import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from model.options import BiLMOptions
from model.training.errors import TrainingError
from model.training.loop import Progress, Trainer
from model.training.recipe import Recipe
from model.training.vocabulary import Vocabulary

FORMAT = 1
# What may change between one session of a run and the next: how far it goes and how fast it learns, not what it is.
MAY_CHANGE = ("max_tokens", "decay_tokens", "rate", "softmax_rate", "warmup", "clip", "weight_decay")


def save(trainer: Trainer, path: Path, keep: int = 1) -> None:
    """Write a checkpoint, whole or not at all.

    Args:
        path: of the newest checkpoint, which is replaced.
        keep: checkpoints to leave in the folder. With more than one, each also stands under a name with its tokens,
            `checkpoint-37646440.pt`, until so many later ones were written: after a divergence there is one to go back to.
    """
    content = {
        "format": FORMAT,
        "options": trainer.options.to_dict(),
        "recipe": asdict(trainer.recipe),
        "progress": asdict(trainer.progress),
        "n_classes": trainer.vocabulary.n_classes,
        "n_types": len(trainer.vocabulary.types),
        "parameters": {name: value.detach().cpu() for name, value in trainer.network.parameters.items()},
        "optimiser": trainer.optimiser.state_dict(),
        "rows": {"weight": trainer.rows.weight.cpu(), "bias": trainer.rows.bias.cpu(), "seen": trainer.rows.seen.cpu()},
        "states": [[(h.cpu(), c.cpu()) for h, c in direction] for direction in trainer.states],
    }
    scratch = path.with_name(path.name + ".part")
    torch.save(content, scratch)
    os.replace(scratch, path)
    if keep > 1:
        _keep(path, trainer.progress.tokens, keep)


def _keep(path: Path, tokens: int, keep: int) -> None:
    """Give the checkpoint a name of its own and remove those that were written earliest, all but `keep`."""
    named = path.with_name(f"{path.stem}-{tokens}{path.suffix}")
    named.unlink(missing_ok=True)
    try:
        os.link(path, named)  # no second copy: the next save replaces `path`, it does not write into it
    except OSError:  # a file system without hard links
        shutil.copyfile(path, named)
    others = [file for file in path.parent.glob(f"{path.stem}-*{path.suffix}") if file != named]
    for file in sorted(others, key=lambda file: file.stat().st_mtime_ns, reverse=True)[keep - 1 :]:
        file.unlink()


def read(path: Path) -> dict[str, Any]:
    """The content of a checkpoint.

    Raises:
        TrainingError: none there, damaged, or of another format.
    """
    if not path.exists():
        raise TrainingError(f"{path} does not exist: there is no run to resume; start one without --resume")
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, ValueError, OSError) as error:
        raise TrainingError(f"{path} can't be read ({error}); it is damaged or no checkpoint of a training run") from error
    if content.get("format") != FORMAT:
        raise TrainingError(f"{path} has format {content.get('format')!r}, this program reads {FORMAT}")
    return content


def resume(
    path: Path,
    recipe: Recipe,
    vocabulary: Vocabulary,
    options: BiLMOptions | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
) -> Trainer:
    """The run of a checkpoint, to go on as if it had never stopped.

    Args:
        path: of the checkpoint.
        recipe: must be the run's own, but for `MAY_CHANGE`.
        vocabulary: of the same text.
        options: checked against the checkpoint's where given.

    Raises:
        TrainingError: another recipe, model or text.
    """
    content = read(path)
    stored = BiLMOptions.from_dict(content["options"])
    if options is not None and options != stored:
        raise TrainingError(f"{path} is of a model with other options; resume with the options.json of that run")
    have, want = content["recipe"], asdict(recipe)
    differing = [name for name in want if name not in MAY_CHANGE and have.get(name) != want[name]]
    if differing:
        both = ", ".join(f"{name}: {have.get(name)!r} there, {want[name]!r} asked for" for name in differing)
        raise TrainingError(f"{path} is of another run ({both}); ask for the same, or start a new run elsewhere")
    if (content["n_classes"], content["n_types"]) != (vocabulary.n_classes, len(vocabulary.types)):
        raise TrainingError(
            f"{path} was trained on a text of {content['n_types']} types and {content['n_classes']} classes, this one has "
            f"{len(vocabulary.types)} and {vocabulary.n_classes}; resume with the same text"
        )
    trainer = Trainer.fresh(stored, recipe, vocabulary, device, dtype)
    with torch.no_grad():
        for name, value in trainer.network.parameters.items():
            value.copy_(content["parameters"][name])
        for name in ("weight", "bias", "seen"):
            stored_rows, rows = content["rows"][name], getattr(trainer.rows, name)
            rows.copy_(stored_rows.view_as(rows))
    trainer.optimiser.load_state_dict(content["optimiser"])
    trainer.states = [[(h.to(device), c.to(device)) for h, c in direction] for direction in content["states"]]
    trainer.progress = Progress(**content["progress"])
    return trainer
