"""A training run in a folder: start or resume, train, report, checkpoint, stop in good order.

A checkpoint resumes exactly: it holds everything that the run's next batch depends on.
"""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from model.errors import TrainingError
from model.files.locate import replacing
from model.options import BiLMOptions
from model.training.corpus import Corpus
from model.training.trainer import Progress, Recipe, StepReport, Trainer

CHECKPOINT = "checkpoint.pt"
CURVE = "curve.tsv"
CURVE_HEADER = "tokens\tseconds\tloss_forward\tloss_backward\trate_factor\n"
CHECKPOINT_SECONDS = 300.0  # between checkpoints

FORMAT = 5
# What may change when a run is resumed: how far it goes and how it learns, not what it is. More negatives near the end
# bring the sampled loss nearer to the full one.
MAY_CHANGE = ("max_tokens", "rate", "sampled")


def run(
    trainer: Trainer,
    folder: Path,
    say: Callable[[str], None] = lambda _: None,
    report_seconds: float = 15.0,
) -> bool:
    """Train until the recipe's tokens or a signal end it; checkpoint and curve go into the folder.

    ``say`` is called with a line about every ``report_seconds``. Returns whether the end was reached. TrainingError as of
    `Trainer.step`: the last checkpoint stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _cut_curve(folder / CURVE, trainer.progress.tokens)
    began, saved, earlier_seconds = time.monotonic(), 0.0, trainer.progress.seconds
    meter = _Meter(trainer.progress.tokens)
    with _signals() as received:
        for step in trainer.train():
            now = time.monotonic() - began
            trainer.progress.seconds = earlier_seconds + now
            meter.steps.append(step)
            ended = (
                trainer.recipe.max_tokens is not None
                and trainer.progress.tokens >= trainer.recipe.max_tokens
            )
            over = ended or bool(received)
            if over or now - meter.seconds >= report_seconds:
                line, row = meter.report(trainer, now)
                say(line)
                with (folder / CURVE).open("a", encoding="utf-8") as file:
                    file.write(row)
            if over or now - saved >= CHECKPOINT_SECONDS:
                save_checkpoint(trainer, folder / CHECKPOINT)
                saved = now
            if over:
                return ended
    raise AssertionError("Trainer.train ends only with its caller")


class _Meter:
    """Loss and speed since the last report."""

    def __init__(self, tokens: int) -> None:
        self.seconds = 0.0  # of this call, at the last report
        self._tokens = tokens
        self.steps: list[StepReport] = []  # since then

    def report(self, trainer: Trainer, now: float) -> tuple[str, str]:
        """What to say at `now` seconds of this call, and the curve's row; the next report counts from here."""
        progress, maximum = trainer.progress, trainer.recipe.max_tokens
        speed = (progress.tokens - self._tokens) / max(now - self.seconds, 1e-9)
        losses = [
            sum(step.loss[k] for step in self.steps)
            / sum(step.predictions[k] for step in self.steps)
            for k in (0, 1)
        ]
        left = (
            ""
            if maximum is None
            else f" | {max(0, maximum - progress.tokens) / max(speed, 1e-9) / 3600:.2f} h left"
        )
        shown = " ".join(f"{loss:.3f}" for loss in losses)
        line = f"{progress.tokens:,} tokens | sampled loss {shown} | {speed:,.0f} tokens/s{left}"
        self.seconds, self._tokens, self.steps = now, progress.tokens, []
        columns = (f"{progress.seconds:.0f}", *(f"{loss:.4f}" for loss in losses))
        return line, "\t".join(
            [str(progress.tokens), *columns, f"{trainer.recipe.rate_factor(progress.tokens):.4f}\n"]
        )


def _cut_curve(path: Path, tokens: int) -> None:
    """Leave the header, and the rows up to ``tokens``: others are of a run that began anew, or died after its checkpoint."""
    rows = path.read_text("utf-8").splitlines(keepends=True)[1:] if path.exists() else []
    path.write_text(
        "".join([CURVE_HEADER, *(row for row in rows if int(row.partition("\t")[0]) <= tokens)]),
        "utf-8",
    )


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The SIGINT or SIGTERM that arrived, which asks for the end instead of killing; a second one kills."""
    received: list[int] = []

    def receive(number: int, _frame: object) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    before = {}
    with suppress(ValueError):  # not the main thread: whoever runs us there stops us in another way
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def save_checkpoint(trainer: Trainer, path: Path) -> None:
    """Write a checkpoint, whole or not at all."""
    content = {
        "format": FORMAT,
        "options": trainer.network.options.to_dict(),
        "recipe": asdict(trainer.recipe),
        "progress": asdict(trainer.progress),
        "corpus": trainer.corpus.digest,
        "precision": str(trainer.network.dtype).removeprefix("torch."),
        "parameters": {
            name: value.detach().cpu() for name, value in trainer.network.parameters.items()
        },
        "optimiser": trainer.optimiser.state_dict(),
        "rows": {
            "weight": trainer.rows.weight.cpu(),
            "bias": trainer.rows.bias.cpu(),
            "seen": trainer.rows.seen.cpu(),
        },
        "states": [[(h.cpu(), c.cpu()) for h, c in direction] for direction in trainer.states],
    }
    with replacing(path) as temporary:
        torch.save(content, temporary)


def resume(
    path: Path,
    recipe: Recipe,
    given: Mapping[str, Any],
    corpus: Corpus,
    options: BiLMOptions,
    device: str,
    dtype: torch.dtype | None = None,
) -> Trainer:
    """The run of the checkpoint ``path``, to go on as if it had never stopped, on the same text with the same model.

    ``recipe`` must be the run's own, but for `MAY_CHANGE`; ``given``: what of these is to change; ``device``, ``dtype``: as of
    `Trainer.fresh`, by default the run's own dtype. TrainingError: no checkpoint, a damaged one, or one of another recipe, model
    or text.
    """
    if not path.exists():
        raise TrainingError(
            f"{path} does not exist: there is no run to resume; start one without --resume"
        )
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of damaged bytes PyTorch raises what it likes
        raise TrainingError(
            f"{path} can't be read ({error}); it is damaged or no checkpoint of a training run"
        ) from error
    if not isinstance(content, dict):
        raise TrainingError(
            f"{path} is no checkpoint of a training run: it holds a {type(content).__name__}"
        )
    if content.get("format") != FORMAT:
        raise TrainingError(
            f"{path} has format {content.get('format')!r}, this program reads {FORMAT}"
        )
    if content["options"] != options.to_dict():
        raise TrainingError(
            f"{path} is of a model with other options; resume with the options.json of that run"
        )
    have, want = content["recipe"], asdict(recipe)
    differing = [name for name in want if name not in MAY_CHANGE and have.get(name) != want[name]]
    if differing:
        both = ", ".join(
            f"{name}: {have.get(name)!r} there, {want[name]!r} asked for" for name in differing
        )
        raise TrainingError(
            f"{path} is of another run ({both}); ask for the same, or start a new run elsewhere"
        )
    if content["corpus"] != corpus.digest:
        raise TrainingError(
            f"{path} was trained on a text with the digest {content['corpus']}, this one has {corpus.digest}: resume with the "
            "same files in the same order"
        )
    recipe = replace(recipe, **({name: have[name] for name in MAY_CHANGE} | dict(given)))
    trainer = Trainer.fresh(
        options, recipe, corpus, device, dtype or getattr(torch, content["precision"])
    )
    with torch.no_grad():
        for name, value in trainer.network.parameters.items():
            value.copy_(content["parameters"][name])
        for name in ("weight", "bias", "seen"):
            getattr(trainer.rows, name).copy_(content["rows"][name])
    trainer.optimiser.load_state_dict(content["optimiser"])
    trainer.states = [
        [(h.to(device), c.to(device)) for h, c in direction] for direction in content["states"]
    ]
    trainer.progress = Progress(**content["progress"])
    return trainer
