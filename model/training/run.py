"""A training run in a folder: start or resume, train, report, checkpoint, stop in good order.

A checkpoint resumes exactly: it holds everything that the run's next batch depends on.
"""

import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from model.errors import TrainingError
from model.files.locate import replacing
from model.options import BiLMOptions
from model.training.corpus import Corpus
from model.training.evaluate import Evaluation, evaluate
from model.training.network import Network
from model.training.trainer import FALL, Progress, Recipe, StepReport, Trainer

CHECKPOINT = "checkpoint.pt"
CURVE = "curve.tsv"
CURVE_HEADER = "tokens\tseconds\tloss_forward\tloss_backward\trate_factor\n"
POINTS = "heldout.tsv"
POINTS_HEADER = "tokens\ttext\tperplexity_forward\tperplexity_backward\n"

FORMAT = 2
# What may change when a run is resumed: how far it goes and how it learns, not what it is. More negatives near the end
# bring the sampled loss nearer to the full one.
MAY_CHANGE = ("max_tokens", "decay_tokens", "rate", "softmax_rate", "warmup", "clip", "weight_decay", "sampled")


@dataclass(frozen=True)
class TrainingReport:
    tokens: int  # of the whole run
    seconds: float  # spent in training by the whole run
    loss: tuple[float, float]  # mean -log p (nats) of each direction
    sampled: bool  # whether that is the sampled softmax's loss, from which no perplexity follows
    speed: float  # words of text a second since the last report
    left: float | None  # seconds to the end at this speed, None where no end is set

    def line(self) -> str:
        losses = " ".join(f"{loss:.3f}" for loss in self.loss)
        if self.sampled:
            shown = f"sampled loss {losses}"
        else:
            shown = f"loss {losses} | perplexity {' '.join(f'{math.exp(min(loss, 50.0)):,.0f}' for loss in self.loss)}"
        left = "" if self.left is None else f" | {self.left / 3600:.2f} h left"
        return f"{self.tokens:,} tokens | {shown} | {self.speed:,.0f} tokens/s{left}"


@dataclass(frozen=True)
class HeldOut:
    """A text to measure perplexity on while a run goes on."""

    name: str  # of the text, in reports and in the file of points
    sentences: Sequence[Sequence[str]]  # the text
    every: int  # tokens of training between two points, and one at the end
    on_point: Callable[[int, Evaluation], None] = lambda *_: None  # called with each point's tokens and its evaluation


@dataclass(frozen=True)
class RunSettings:
    """How long to train and what to leave on the way."""

    hours: float | None = None  # bound on this call; None = none
    on_progress: Callable[[TrainingReport], None] = lambda _: None  # called about every `report_seconds`
    report_seconds: float = 30.0
    checkpoint_seconds: float = 180.0  # between checkpoints
    keep: int = 1  # checkpoints to leave, the newest included
    heldout: HeldOut | None = None  # measured at points of the run


def run(trainer: Trainer, folder: Path, settings: RunSettings = RunSettings()) -> str:
    """Train until the recipe's tokens, the hours or a signal end it; checkpoint, curve and held-out points go into the folder.

    Where the recipe has no end in tokens and hours are given, the end is set once a quarter of them (`FALL`) is left, to
    what the speed so far will reach: the rate falls to zero over it. From then on the run's end stands in its checkpoint.
    Returns why it ended: "tokens", "hours" or "signal".
    """
    folder.mkdir(parents=True, exist_ok=True)
    began, saved, earlier_seconds = time.monotonic(), 0.0, trainer.progress.seconds
    first_tokens = measured_tokens = trainer.progress.tokens
    meter, heldout = _Meter(first_tokens), settings.heldout
    with _signals() as received:
        for step in trainer.train():
            now, tokens = time.monotonic() - began, trainer.progress.tokens
            trainer.progress.seconds = earlier_seconds + now
            meter.add(step)
            if settings.hours is not None and trainer.recipe.max_tokens is None and now >= (1 - FALL) * settings.hours * 3600:
                speed = (tokens - first_tokens) / now
                trainer.recipe = _end_within(trainer.recipe, tokens, speed, settings.hours * 3600 - now)
            over = _over(trainer, settings.hours, now, bool(received))
            if over or now - meter.seconds >= settings.report_seconds:
                report = meter.report(trainer, settings.hours, now)
                settings.on_progress(report)
                losses, factor = "\t".join(f"{loss:.4f}" for loss in report.loss), trainer.recipe.rate_factor(tokens)
                _add_line(folder / CURVE, CURVE_HEADER, f"{tokens}\t{report.seconds:.0f}\t{losses}\t{factor:.4f}\n")
            if heldout and (tokens // heldout.every > measured_tokens // heldout.every or over == "tokens"):
                paused = time.monotonic()
                _measure(trainer, heldout, folder / POINTS)
                began += time.monotonic() - paused
                measured_tokens = tokens
            if over or now - saved >= settings.checkpoint_seconds:
                save_checkpoint(trainer, folder / CHECKPOINT, settings.keep)
                saved = now
            if over:
                return over
    raise AssertionError("Trainer.train ends only with its caller")


def _over(trainer: Trainer, hours: float | None, now: float, signalled: bool) -> str | None:
    """Why the run ends after this batch, `now` seconds after it began; None where it goes on."""
    maximum = trainer.recipe.max_tokens
    if maximum is not None and trainer.progress.tokens >= maximum:
        return "tokens"
    if hours is not None and now >= hours * 3600:
        return "hours"
    return "signal" if signalled else None


class _Meter:
    """Loss and speed since the last report."""

    def __init__(self, tokens: int) -> None:
        self.seconds = 0.0  # of this call, at the last report
        self._tokens = tokens
        self._loss, self._predictions = [0.0, 0.0], [0.0, 0.0]

    def add(self, step: StepReport) -> None:
        for k in range(2):
            self._loss[k] += step.loss[k]
            self._predictions[k] += step.predictions[k]

    def report(self, trainer: Trainer, hours: float | None, now: float) -> TrainingReport:
        """The report at `now` seconds of this call, from which on the next one counts."""
        tokens, maximum = trainer.progress.tokens, trainer.recipe.max_tokens
        speed = (tokens - self._tokens) / max(now - self.seconds, 1e-9)
        ends = [] if maximum is None else [max(0, maximum - tokens) / max(speed, 1e-9)]
        ends += [] if hours is None else [max(0.0, hours * 3600 - now)]
        forward, backward = (loss / max(n, 1.0) for loss, n in zip(self._loss, self._predictions, strict=True))
        self.seconds, self._tokens, self._loss, self._predictions = now, tokens, [0.0, 0.0], [0.0, 0.0]
        sampled = trainer.recipe.sampled > 0
        return TrainingReport(tokens, trainer.progress.seconds, (forward, backward), sampled, speed, min(ends, default=None))


def _end_within(recipe: Recipe, tokens: int, speed: float, seconds: float) -> Recipe:
    """The recipe with an end that will be reached at this speed a little before so many seconds are over."""
    rest = max(1, round(0.95 * speed * max(0.0, seconds)))
    return replace(recipe, max_tokens=tokens + rest, decay_tokens=rest)


def _measure(trainer: Trainer, heldout: HeldOut, path: Path) -> None:
    """Add a point of full-softmax perplexity to the file, in float32 products."""
    exact = Network(trainer.options, trainer.network.parameters, torch.float32)
    evaluation = evaluate(exact, trainer.softmax_weights(), heldout.sentences)
    forward, backward = evaluation.perplexity
    _add_line(path, POINTS_HEADER, f"{trainer.progress.tokens}\t{heldout.name}\t{forward:.3f}\t{backward:.3f}\n")
    heldout.on_point(trainer.progress.tokens, evaluation)


def _add_line(path: Path, header: str, line: str) -> None:
    if not path.exists():
        path.write_text(header, encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:
        file.write(line)


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


def save_checkpoint(trainer: Trainer, path: Path, keep: int = 1) -> None:
    """Write a checkpoint, whole or not at all, in place of the newest one at ``path``.

    With ``keep`` above 1, each also stands under a name with its tokens, `checkpoint-37646440.pt`, until so many later ones were
    written: after a divergence there is one to go back to.
    """
    content = {
        "format": FORMAT,
        "options": trainer.options.to_dict(),
        "recipe": asdict(trainer.recipe),
        "progress": asdict(trainer.progress),
        "corpus": trainer.corpus.digest,
        "parameters": {name: value.detach().cpu() for name, value in trainer.network.parameters.items()},
        "optimiser": trainer.optimiser.state_dict(),
        "rows": {"weight": trainer.rows.weight.cpu(), "bias": trainer.rows.bias.cpu(), "seen": trainer.rows.seen.cpu()},
        "states": [[(h.cpu(), c.cpu()) for h, c in direction] for direction in trainer.states],
    }
    with replacing(path) as temporary:
        torch.save(content, temporary)
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


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint. TrainingError: none there, damaged, or of another format."""
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
    corpus: Corpus,
    options: BiLMOptions | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
) -> Trainer:
    """The run of a checkpoint, to go on as if it had never stopped.

    Args:
        path: of the checkpoint.
        recipe: must be the run's own, but for `MAY_CHANGE`; where it has no end, the run's own end and fall hold.
        corpus: the same text.
        options: checked against the checkpoint's where given.

    Raises:
        TrainingError: another recipe, model or text.
    """
    content = read_checkpoint(path)
    stored = BiLMOptions.from_dict(content["options"])
    if options is not None and options != stored:
        raise TrainingError(f"{path} is of a model with other options; resume with the options.json of that run")
    have, want = content["recipe"], asdict(recipe)
    differing = [name for name in want if name not in MAY_CHANGE and have.get(name) != want[name]]
    if differing:
        both = ", ".join(f"{name}: {have.get(name)!r} there, {want[name]!r} asked for" for name in differing)
        raise TrainingError(f"{path} is of another run ({both}); ask for the same, or start a new run elsewhere")
    if content["corpus"] != corpus.digest:
        raise TrainingError(
            f"{path} was trained on a text with the digest {content['corpus']}, this one has {corpus.digest}: resume with the "
            "same files in the same order, --vocabulary and --words"
        )
    if recipe.max_tokens is None:
        recipe = replace(recipe, max_tokens=have["max_tokens"], decay_tokens=have["decay_tokens"])
    trainer = Trainer.fresh(stored, recipe, corpus, device, dtype)
    with torch.no_grad():
        for name, value in trainer.network.parameters.items():
            value.copy_(content["parameters"][name])
        for name in ("weight", "bias", "seen"):
            stored_rows, rows = content["rows"][name], getattr(trainer.rows, name)
            rows.copy_(stored_rows.view_as(rows))
    decays = [group["weight_decay"] for group in trainer.optimiser.param_groups]
    trainer.optimiser.load_state_dict(content["optimiser"])
    for group, decay in zip(trainer.optimiser.param_groups, decays, strict=True):
        group["weight_decay"] = decay  # the recipe's, which may have changed; the rate is set at every step
    trainer.states = [[(h.to(device), c.to(device)) for h, c in direction] for direction in content["states"]]
    trainer.progress = Progress(**content["progress"])
    return trainer
