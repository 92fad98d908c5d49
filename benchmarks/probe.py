"""What the layers of a model know: part of speech, chunks and word senses, from nothing but the model and the annotated sets.

python -m benchmarks.probe [--model NAME|FOLDER|URL] [--eval-dir FOLDER] [--seeds 5] [--work out/probe]

Embeds the sets with `elmo-store embed` (stores that are complete already are used again), probes them, and prints the table in
Markdown, the differences with their noise, and the learned mixes.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.data import data_folder
from pipeline.main import main as elmo_store_command
from pipeline.probing import results
from pipeline.probing.features import FeatureError
from pipeline.probing.labels import LabelError, read_senses, read_token_labels
from pipeline.probing.probe import Checks, TaggingTask, run_senses, run_tagging
from pipeline.probing.results import Result
from pipeline.probing.scores import Metric
from pipeline.probing.tagger import TaggerSettings, TaggingRun

ESCAPES = {
    "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"',
}  # fmt: skip
UD = "ud_english_ewt/en_ewt-ud-{}.conllu.xz"
CHUNKS = "conll2000/{}.tsv.xz"
SENSES = "senseval/{}.tsv.xz"


@dataclass(frozen=True)
class Task:
    """A train set and a test set: files below the evaluation folder, the label's column, the score, a column to guess from."""

    name: str
    train: str
    test: str
    column: str
    metric: Metric
    given: str | None = None


TASKS = {
    "upos": Task("UD-EWT UPOS", UD.format("train"), UD.format("test"), "upos", "accuracy"),
    "xpos": Task("UD-EWT XPOS", UD.format("train"), UD.format("test"), "xpos", "accuracy"),
    "deprel": Task("UD-EWT relation", UD.format("train"), UD.format("test"), "deprel", "accuracy"),
    "chunks": Task("CoNLL-2000 chunks", CHUNKS.format("train"), CHUNKS.format("test"), "3", "span-f1", given="2"),
    "pos": Task("CoNLL-2000 POS", CHUNKS.format("train"), CHUNKS.format("test"), "2", "accuracy"),
    "dev": Task("UD-EWT UPOS (dev)", UD.format("train"), UD.format("dev"), "upos", "accuracy"),
}
SENSE = {"senseval line": SENSES.format("line"), "senseval interest": SENSES.format("interest")}
USUAL = "upos,xpos,deprel,chunks,pos,senses"

WHERE = """\
no annotated sets at {folder}: missing are
{missing}
Put there (plain or .xz is told by the name, so keep the names above):
  ud_english_ewt/  UD English EWT 2.15, https://universaldependencies.org: en_ewt-ud-train, -dev, -test.conllu, xz-compressed
  conll2000/       the CoNLL-2000 shared task's train and test: word, POS, chunk between tabs, a blank line after a sentence
  senseval/        line and interest: id, sense, index of the target token from 0, tokens (between spaces), between tabs
and give their folder as --eval-dir. Any other labelled files: `elmo-store probe --help`."""


def unescaped(token: str) -> str:
    """A Penn Treebank escape as running text has it, whatever its case; any other token as it is."""
    return ESCAPES.get(token.upper(), token)


def write_lines(sentences: Iterable[Sequence[str]], path: Path) -> None:
    """A sentence a line, tokens between spaces, escapes mapped; nothing is written if the file is the same already."""
    text = "".join(" ".join(unescaped(token) for token in tokens) + "\n" for tokens in sentences)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def embedding_input(source: Path, work: Path) -> Path:
    """What `embed` reads for an annotated file: CoNLL-U itself, lines of tokens made from anything else."""
    if ".conllu" in source.suffixes:
        return source
    path = work / "lines" / f"{source.parent.name}-{source.name.split('.')[0]}.lines"
    if source.parent.name == "senseval":
        write_lines((instance.tokens for instance in read_senses(str(source))), path)
    else:
        write_lines((sentence.words for sentence in read_token_labels(str(source), "1")), path)
    return path


def stored(source: Path, args: argparse.Namespace) -> str:
    """The store of an annotated file's sentences, made by `elmo-store embed` unless it is there. SystemExit if that fails."""
    place = args.work / args.fingerprint / f"{source.parent.name}-{source.name.split('.')[0]}"
    command = ["embed", str(embedding_input(source, args.work)), "--output", str(place), "--quiet"]
    if args.model:
        command += ["--model", args.model]
    print(f"elmo-store {' '.join(command)}", file=sys.stderr, flush=True)
    with redirect_stdout(sys.stderr):  # the table alone goes to standard output
        code = elmo_store_command(command)
    if code:
        raise SystemExit(code)
    return str(place)


def tagging(task: Task, args: argparse.Namespace, epochs: int) -> Result:
    """Embed and probe one tagging task."""
    places = {side: stored(args.eval_dir / name, args) for side, name in (("train", task.train), ("test", task.test))}
    torch.set_num_threads(args.threads)  # after embedding, which chooses its own; one is quicker for steps this small
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = TaggerSettings(
        tagger=args.tagger, epochs=epochs, layer_norm=args.layer_norm, dropout=args.dropout, l2=args.l2, device=device
    )

    def tell(_: str, run: TaggingRun) -> None:
        line = f"{task.name}, {epochs} epochs: {run.feature}, seed {run.seed}: {100 * run.score:.2f} ({run.seconds:.0f} s)"
        print(line, file=sys.stderr, flush=True)

    return run_tagging(
        TaggingTask(
            f"{task.name}, {epochs} epochs", places["train"], str(args.eval_dir / task.train), places["test"],
            str(args.eval_dir / task.test), column=task.column, metric=task.metric, given=task.given,
        ),
        asked=args.features, seeds=args.seeds, settings=settings, checks=Checks(args.control, args.logistic), tell=tell,
    )  # fmt: skip


def sense(name: str, file: str, args: argparse.Namespace) -> Result:
    """Embed and probe one word's senses."""
    return run_senses(name, stored(args.eval_dir / file, args), str(args.eval_dir / file), seeds=args.seeds)


def missing_files(eval_dir: Path, only: Sequence[str]) -> list[str]:
    """The annotated files that are not there."""
    wanted = [file for name in only if name in TASKS for file in (TASKS[name].train, TASKS[name].test)]
    wanted += list(SENSE.values()) if "senses" in only else []
    return [name for name in wanted if not (eval_dir / name).is_file()]


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(prog="python -m benchmarks.probe", description=(__doc__ or "").split("\n")[0])
    found.add_argument("--model", metavar="NAME|FOLDER|URL", help="as for embed (default: the packaged model)")
    found.add_argument(
        "--untrained",
        action="store_true",
        help="the first weights of a training of the model's shape instead, as a control (default: off)",
    )
    found.add_argument(
        "--eval-dir", type=Path, default=data_folder() / "eval", help="annotated sets (default: eval in $ELMO_STORE_DATA)"
    )
    found.add_argument("--work", type=Path, default=Path("out/probe"), help="folder of the stores (default: out/probe)")
    found.add_argument("--seeds", type=int, default=5, help="repetitions (default: 5)")
    found.add_argument("--tasks", default=USUAL, help=f"of {', '.join(TASKS)}, senses (default: {USUAL})")
    found.add_argument("--features", metavar="NAME,…", help="as for `elmo-store probe tag` (default: layers, average, mix)")
    found.add_argument("--tagger", choices=("linear", "bilstm"), default="linear", help="on the vectors (default: linear)")
    found.add_argument(
        "--epochs", type=int, nargs="+", default=[10], help="passes over a training set, each its own (default: 10)"
    )
    found.add_argument("--control", action="store_true", help="also the control task (default: off)")
    found.add_argument("--logistic", action="store_true", help="also logistic regression on each mix (default: off)")
    found.add_argument("--layer-norm", choices=("none", "token", "batch"), default="none", help="before mixing (default: none)")
    found.add_argument("--dropout", type=float, default=0.1, help="on the vectors (default: 0.1)")
    found.add_argument("--l2", type=float, default=0.001, help="λ of λ‖w‖² (default: 0.001)")
    found.add_argument("--threads", type=int, default=1, help="CPU threads of the taggers (default: 1)")
    found.add_argument("--json", type=Path, metavar="FILE", help="all numbers (default: none)")
    found.add_argument("--plot", metavar="FILE", help="the learned s and γ, .svg or .png (default: none)")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Everything, in order; 0 when the table is printed, 3 when data or model are missing."""
    args = parser().parse_args(argv)
    only = [name.strip() for name in args.tasks.split(",")]
    if unknown := set(only) - {*TASKS, "senses"}:
        print(f"--tasks: no task {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}, senses", file=sys.stderr)
        return 2
    if missing := missing_files(args.eval_dir, only):
        print(WHERE.format(folder=args.eval_dir, missing="\n".join(f"  {name}" for name in missing)), file=sys.stderr)
        return 3
    from model.errors import ModelError
    from model.files.registry import load_model
    from model.files.weights import BiLMWeights
    from model.training.network import initial_parameters

    try:
        name, weights = load_model(args.model)
    except (ModelError, OSError) as error:
        print(f"the model can't be loaded: {error}", file=sys.stderr)
        return 3
    if args.untrained:
        args.work.mkdir(parents=True, exist_ok=True)
        args.model, name = str(args.work / "untrained.safetensors"), f"untrained, of the shape of {name}"
        weights = BiLMWeights(weights.options, initial_parameters(weights.options, seed=1))
        weights.save_safetensors(args.model)
    args.fingerprint = weights.fingerprint.removeprefix("sha256:")[:12]
    began = time.perf_counter()
    try:
        found = [tagging(TASKS[key], args, epochs) for key in only if key in TASKS for epochs in args.epochs]
    except (FeatureError, LabelError) as error:
        print(error, file=sys.stderr)
        return 2
    found += [sense(*item, args) for item in SENSE.items()] if "senses" in only else []
    print(f"\nmodel {name} ({weights.fingerprint}), {args.tagger} tagger, dropout {args.dropout}, layer norm "
          f"{args.layer_norm}, λ {args.l2}; mean ± sd over {args.seeds} seeds, percent\n")  # fmt: skip
    print(results.markdown(found))
    for result in found:
        if result.differences:
            print(f"\n{results.differences(result)}")
        if result.mixes:
            print(f"\n{results.bars(result)}")
    print(f"\n{time.perf_counter() - began:.0f} s")
    if args.json:
        args.json.write_text(json.dumps(results.as_json(found), indent=2) + "\n", encoding="utf-8")
    if args.plot:
        results.plot(found, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
