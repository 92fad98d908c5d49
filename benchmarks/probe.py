"""What the layers of a model know: part of speech, chunks and word senses, from nothing but the model and the annotated sets.

    python -m benchmarks.probe [--model NAME|FOLDER|URL] [--eval-dir FOLDER] [--seeds 5] [--work out/probe]

Embeds the sets with `elmo-store embed` (stores that are complete already are used again), probes them as `elmo-store probe`
does, and prints the table in Markdown, the differences with their noise, and the learned mixes.
docs/development/data.md says where the annotated sets are had; any other labelled files: `elmo-store probe --help`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.shared.support import options_of
from model.errors import ModelError
from model.files.registry import load_model
from model.files.weights import BiLMWeights
from model.training.network import initial_parameters
from pipeline.cli.label_files import LabelError
from pipeline.commands.probe import add_tagging, run_task
from pipeline.main import main as elmo_store
from pipeline.probing import results
from pipeline.probing.data import read_senses, read_token_labels
from pipeline.probing.results import Metric, Result
from pipeline.probing.senses import run_senses
from pipeline.probing.tagger import FeatureError
from pipeline.probing.tagging import TaggingTask
from tests.data import data_folder

ESCAPES = {
    "-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"',
}  # fmt: skip
UD = "ud_english_ewt/en_ewt-ud-{}.conllu.xz"
CHUNKS = "conll2000/{}.tsv.xz"
SENSE = {"senseval line": "senseval/line.tsv.xz", "senseval interest": "senseval/interest.tsv.xz"}


def task(
    name: str, files: str, column: str, metric: Metric = "accuracy", given: str | None = None, test: str = "test"
) -> TaggingTask:
    """Its labels below the evaluation folder; stores are named when they are made."""
    return TaggingTask(name, "", files.format("train"), "", files.format(test), column, None, metric, given)


TASKS = {
    "upos": task("UD-EWT UPOS", UD, "upos"),
    "xpos": task("UD-EWT XPOS", UD, "xpos"),
    "deprel": task("UD-EWT relation", UD, "deprel"),
    "chunks": task("CoNLL-2000 chunks", CHUNKS, "3", "span-f1", given="2"),
    "pos": task("CoNLL-2000 POS", CHUNKS, "2"),
    "dev": task("UD-EWT UPOS (dev)", UD, "upos", test="dev"),
}
USUAL = "upos,xpos,deprel,chunks,pos,senses"


def unescaped(token: str) -> str:
    """A Penn Treebank escape as running text has it, whatever its case; any other token as it is."""
    return ESCAPES.get(token.upper(), token)


def embedding_input(source: Path, work: Path) -> Path:
    """What `embed` reads for an annotated file: CoNLL-U itself, lines of tokens, escapes mapped, made from anything else."""
    if ".conllu" in source.suffixes:
        return source
    path = work / "lines" / f"{source.parent.name}-{source.name.split('.')[0]}.lines"
    sentences: list[Sequence[str]]
    if source.parent.name == "senseval":
        sentences = [instance.tokens for instance in read_senses(str(source))]
    else:
        sentences = [sentence.words for sentence in read_token_labels(str(source), "1")]
    text = "".join(" ".join(map(unescaped, tokens)) + "\n" for tokens in sentences)
    if not path.exists() or path.read_text(encoding="utf-8") != text:  # a store's input must not look newer than it is
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path


def stored(source: Path, args: argparse.Namespace) -> str:
    """The store of an annotated file's sentences, made by `elmo-store embed` unless it is complete. SystemExit if that fails."""
    url = str(args.work / args.fingerprint / f"{source.parent.name}-{source.name.split('.')[0]}")
    command = ["embed", str(embedding_input(source, args.work)), "--output", url, "--quiet"]
    command += ["--model", args.model] if args.model else []
    print(f"elmo-store {' '.join(command)}", file=sys.stderr, flush=True)
    with redirect_stdout(sys.stderr):  # the table alone goes to standard output
        if code := elmo_store(command):
            raise SystemExit(code)
    torch.set_num_threads(1)  # embedding chooses its own; one is quicker for steps this small
    return url


def probed(names: Sequence[str], args: argparse.Namespace) -> list[Result]:
    """Every task's outcome."""
    outcomes = []
    for task in (TASKS[name] for name in names if name in TASKS):
        train, test = args.eval_dir / task.train_labels, args.eval_dir / task.test_labels
        labelled = replace(task, train_labels=str(train), test_labels=str(test))
        outcomes.append(run_task(replace(labelled, train=stored(train, args), test=stored(test, args)), args))
    if "senses" in names:
        for name, file in SENSE.items():
            senses = args.eval_dir / file
            outcomes.append(run_senses(name, stored(senses, args), str(senses), seeds=args.seeds))
    return outcomes


def parser() -> argparse.ArgumentParser:
    options = options_of(__doc__)
    add = options.add_argument
    add("--model", metavar="NAME|FOLDER|URL", help="as for embed (default: the packaged model)")
    add("--untrained", action="store_true", help="a control: the first weights of a training of the model's shape (default: off)")
    add("--eval-dir", type=Path, default=data_folder() / "eval", help="annotated sets (default: eval in $ELMO_STORE_DATA)")
    add("--work", type=Path, default=Path("out/probe"), help="folder of the stores (default: out/probe)")
    add("--seeds", type=int, default=5, help="repetitions (default: 5)")
    add("--tasks", default=USUAL, help=f"of {', '.join(TASKS)}, senses (default: {USUAL})")
    add("--json", type=Path, metavar="FILE", help="all numbers (default: none)")
    add("--plot", metavar="FILE", help="the learned s and γ, .svg or .png (default: none)")
    add_tagging(options)
    options.set_defaults(storage_options=None, quiet=False)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Everything, in order; 0 when the table is printed, 3 when data or model are missing."""
    args = parser().parse_args(argv)
    names = [name.strip() for name in args.tasks.split(",")]
    if unknown := set(names) - {*TASKS, "senses"}:
        print(f"--tasks: no task {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}, senses", file=sys.stderr)
        return 2
    tasks = [TASKS[name] for name in names if name in TASKS]
    files = [file for task in tasks for file in (task.train_labels, task.test_labels) if file is not None]
    files += SENSE.values() if "senses" in names else []
    if missing := [name for name in files if not (args.eval_dir / name).is_file()]:
        print(
            f"no annotated sets at {args.eval_dir}: missing are {', '.join(missing)}; docs/development/data.md has them",
            file=sys.stderr,
        )
        return 3
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
    try:
        outcomes = probed(names, args)
    except (FeatureError, LabelError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"model {name} ({weights.fingerprint}), {args.tagger} tagger, {args.epochs} epochs, dropout {args.dropout}, layer norm "
          f"{args.layer_norm}, λ {args.l2}; mean ± sd over {args.seeds} seeds, percent\n\n{results.text(outcomes)}")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(results.as_json(outcomes), indent=2) + "\n", encoding="utf-8")
    if args.plot:
        results.plot(outcomes, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
