"""A training run in a folder: start or resume, train, report, checkpoint, stop in good order. Imports torch and the trainer.

A checkpoint resumes exactly: it holds everything that the run's next batch depends on.
"""

import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from model.options import BiLMOptions
from model.training.corpus import Corpus
from model.training.errors import TrainingError
from model.training.evaluate import Evaluation, evaluate
from model.training.network import Network
from model.training.trainer import FALL, Progress, Recipe, Trainer

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
class Report:
    """What happened since the report before.

    Attributes:
        tokens, seconds: of the whole run; seconds spent in training.
        loss: mean -log p (nats) of each direction.
        sampled: whether that is the sampled softmax's loss, from which no perplexity follows.
        speed: words of text a second since the last report.
        left: seconds to the end at this speed, None where no end is set.
    """

    tokens: int
    seconds: float
    loss: tuple[float, float]
    sampled: bool
    speed: float
    left: float | None

    def line(self) -> str:
        """The progress line."""
        losses = " ".join(f"{loss:.3f}" for loss in self.loss)
        if self.sampled:
            told = f"sampled loss {losses}"
        else:
            told = f"loss {losses} | perplexity {' '.join(f'{math.exp(min(loss, 50.0)):,.0f}' for loss in self.loss)}"
        left = "" if self.left is None else f" | {self.left / 3600:.2f} h left"
        return f"{self.tokens:,} tokens | {told} | {self.speed:,.0f} tokens/s{left}"


@dataclass(frozen=True)
class HeldOut:
    """A text to measure perplexity on while a run goes on.

    Attributes:
        name: of the text, in reports and in the file of points.
        sentences: the text.
        every: tokens of training between two points, and one at the end.
        report: called with each point's tokens and what was found.
    """

    name: str
    sentences: Sequence[Sequence[str]]
    every: int
    report: Callable[[int, Evaluation], None] = lambda *_: None


def run(
    trainer: Trainer,
    folder: Path,
    *,
    hours: float | None = None,
    report: Callable[[Report], None] = lambda _: None,
    report_seconds: float = 30.0,
    checkpoint_seconds: float = 180.0,
    keep: int = 1,
    heldout: HeldOut | None = None,
) -> str:
    """Train until the recipe's tokens, the hours or a signal end it, and leave a checkpoint.

    Where the recipe has no end in tokens and hours are given, the end is set once a quarter of them (`FALL`) is left, to
    what the speed so far will reach: the rate falls to zero over it. From then on the run's end stands in its checkpoint.

    Args:
        trainer: fresh or resumed.
        folder: for the checkpoint, the curve and the held-out points.
        hours: bound on this call.
        report: called about every `report_seconds`.
        checkpoint_seconds: between checkpoints.
        keep: checkpoints to leave, the newest included.
        heldout: measured at points of the run.

    Returns:
        why it ended: "tokens", "hours" or "signal".
    """
    folder.mkdir(parents=True, exist_ok=True)
    clock = _Clock()
    told = saved = 0.0
    base, first_tokens = trainer.progress.seconds, trainer.progress.tokens
    told_tokens, measured_tokens = first_tokens, first_tokens
    loss, predictions = [0.0, 0.0], [0.0, 0.0]
    with _Signals() as stopped:
        for step in trainer.train():
            now, tokens = clock.seconds(), trainer.progress.tokens
            trainer.progress.seconds = base + now
            for k in range(2):
                loss[k] += step.loss[k]
                predictions[k] += step.predictions[k]
            if hours is not None and trainer.recipe.max_tokens is None and now >= (1 - FALL) * hours * 3600:
                trainer.recipe = _end_within(trainer.recipe, tokens, (tokens - first_tokens) / now, hours * 3600 - now)
            maximum = trainer.recipe.max_tokens
            over = None
            if maximum is not None and tokens >= maximum:
                over = "tokens"
            elif hours is not None and now >= hours * 3600:
                over = "hours"
            elif stopped.received:
                over = "signal"
            if over or now - told >= report_seconds:
                speed = (tokens - told_tokens) / max(now - told, 1e-9)
                left = None if maximum is None else max(0, maximum - tokens) / max(speed, 1e-9)
                if hours is not None:
                    rest = max(0.0, hours * 3600 - now)
                    left = rest if left is None else min(left, rest)
                mean = loss[0] / max(predictions[0], 1.0), loss[1] / max(predictions[1], 1.0)
                this = Report(tokens, trainer.progress.seconds, mean, trainer.recipe.sampled > 0, speed, left)
                report(this)
                _add_to_curve(folder / CURVE, this, trainer.schedule.factor(tokens))
                told, told_tokens, loss, predictions = now, tokens, [0.0, 0.0], [0.0, 0.0]
            if heldout and (tokens // heldout.every > measured_tokens // heldout.every or over == "tokens"):
                with clock.stopped():
                    _measure(trainer, heldout, folder / POINTS)
                measured_tokens = tokens
            if over or now - saved >= checkpoint_seconds:
                save_checkpoint(trainer, folder / CHECKPOINT, keep)
                saved = now
            if over:
                return over
    raise AssertionError("Trainer.train ends only with its caller")


def _end_within(recipe: Recipe, tokens: int, speed: float, seconds: float) -> Recipe:
    """The recipe with an end that will be reached at this speed a little before so many seconds are over."""
    rest = max(1, round(0.95 * speed * max(0.0, seconds)))
    return replace(recipe, max_tokens=tokens + rest, decay_tokens=rest)


def _measure(trainer: Trainer, heldout: HeldOut, path: Path) -> None:
    """Add a point of full-softmax perplexity to the file, in float32 products."""
    exact = Network(trainer.options, trainer.network.parameters, torch.float32)
    found = evaluate(exact, trainer.softmax_weights(), heldout.sentences)
    forward, backward = found.perplexity
    _add_line(path, POINTS_HEADER, f"{trainer.progress.tokens}\t{heldout.name}\t{forward:.3f}\t{backward:.3f}\n")
    heldout.report(trainer.progress.tokens, found)


def _add_to_curve(path: Path, this: Report, factor: float) -> None:
    losses = "\t".join(f"{loss:.4f}" for loss in this.loss)
    _add_line(path, CURVE_HEADER, f"{this.tokens}\t{this.seconds:.0f}\t{losses}\t{factor:.4f}\n")


def _add_line(path: Path, header: str, line: str) -> None:
    if not path.exists():
        path.write_text(header, encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:
        file.write(line)


class _Clock:
    """Seconds since it was made, those left out during which it was stopped."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._began

    @contextmanager
    def stopped(self) -> Iterator[None]:
        at = time.monotonic()
        yield
        self._began += time.monotonic() - at


class _Signals:
    """While it holds, SIGINT and SIGTERM ask for the end instead of killing; a second one kills."""

    def __init__(self) -> None:
        self.received = False

    def __enter__(self) -> "_Signals":
        self._before = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
        except ValueError:  # not the main thread: whoever runs us there stops us in another way
            pass
        return self

    def _receive(self, number: int, _frame: object) -> None:
        self.received = True
        signal.signal(number, signal.SIG_DFL)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def save_checkpoint(trainer: Trainer, path: Path, keep: int = 1) -> None:
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
        "corpus": trainer.corpus.digest,
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


def read_checkpoint(path: Path) -> dict[str, Any]:
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
