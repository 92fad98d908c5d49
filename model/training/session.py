"""One sitting of a training run in a folder: start or resume, train, report, checkpoint, stop in good order.

Imports torch, the loop and the checkpoint.
"""

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from model.training import checkpoint
from model.training.data import Corpus
from model.training.loop import Trainer

CHECKPOINT = "checkpoint.pt"
CURVE = "curve.tsv"
CURVE_HEADER = "tokens\tseconds\tloss_forward\tloss_backward\trate_factor\n"


@dataclass(frozen=True)
class Report:
    """What happened since the report before.

    Attributes:
        tokens, seconds: of the whole run.
        loss: mean -log p (nats) of each direction, of the sampled softmax where one is used.
        speed: words of text a second since the last report.
        left: seconds to the end at this speed, None where no end is set.
    """

    tokens: int
    seconds: float
    loss: tuple[float, float]
    speed: float
    left: float | None

    def line(self) -> str:
        """The progress line."""
        perplexity = " ".join(f"{math.exp(min(loss, 50.0)):,.0f}" for loss in self.loss)
        losses = " ".join(f"{loss:.3f}" for loss in self.loss)
        left = "" if self.left is None else f" | {self.left / 3600:.2f} h left"
        return f"{self.tokens:,} tokens | loss {losses} | perplexity {perplexity} | {self.speed:,.0f} tokens/s{left}"


def sit(
    trainer: Trainer,
    corpus: Corpus,
    folder: Path,
    *,
    hours: float | None = None,
    report: Callable[[Report], None] = lambda _: None,
    report_seconds: float = 30.0,
    checkpoint_seconds: float = 180.0,
    keep: int = 1,
) -> str:
    """Train until the recipe's tokens, the hours or a signal end it, and leave a checkpoint.

    Args:
        trainer: fresh or resumed.
        folder: for the checkpoint and the curve.
        hours: bound on this sitting.
        report: called about every `report_seconds`.
        checkpoint_seconds: between checkpoints.
        keep: checkpoints to leave, the newest included.

    Returns:
        why it ended: "tokens", "hours" or "signal".
    """
    folder.mkdir(parents=True, exist_ok=True)
    began = told = saved = time.monotonic()
    base, told_tokens = trainer.progress.seconds, trainer.progress.tokens
    loss, predictions = [0.0, 0.0], [0.0, 0.0]
    maximum = trainer.recipe.max_tokens
    with _Signals() as stopped:
        for step in trainer.run(corpus):
            now = time.monotonic()
            trainer.progress.seconds = base + now - began
            for k in range(2):
                loss[k] += step.loss[k]
                predictions[k] += step.predictions[k]
            over = None
            if maximum is not None and trainer.progress.tokens >= maximum:
                over = "tokens"
            elif hours is not None and now - began >= hours * 3600:
                over = "hours"
            elif stopped.received:
                over = "signal"
            if over or now - told >= report_seconds:
                tokens = trainer.progress.tokens
                speed = (tokens - told_tokens) / max(now - told, 1e-9)
                left = None if maximum is None else max(0, maximum - tokens) / max(speed, 1e-9)
                if hours is not None:
                    rest = max(0.0, hours * 3600 - (now - began))
                    left = rest if left is None else min(left, rest)
                mean = loss[0] / max(predictions[0], 1.0), loss[1] / max(predictions[1], 1.0)
                this = Report(tokens, trainer.progress.seconds, mean, speed, left)
                report(this)
                _add_to_curve(folder / CURVE, this, trainer.course.factor(tokens))
                told, told_tokens, loss, predictions = now, tokens, [0.0, 0.0], [0.0, 0.0]
            if over or now - saved >= checkpoint_seconds:
                checkpoint.save(trainer, folder / CHECKPOINT, keep)
                saved = time.monotonic()
            if over:
                return over
    raise AssertionError("Trainer.run ends only with its caller")


def _add_to_curve(path: Path, this: Report, factor: float) -> None:
    if not path.exists():
        path.write_text(CURVE_HEADER, encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{this.tokens}\t{this.seconds:.0f}\t{this.loss[0]:.4f}\t{this.loss[1]:.4f}\t{factor:.4f}\n")


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
