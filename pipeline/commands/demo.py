"""``elmo-store demo``: a word in a few sentences, and which of its occurrences are nearest to each other, layer by layer."""

import argparse

import numpy as np
import numpy.typing as npt

from pipeline.cli import locations
from pipeline.cli.arguments import add_option
from pipeline.cli.command import Command
from pipeline.cli.exit_codes import CommandError, Exit
from pipeline.jobs.spec import add_embed_option

WORD = "bank"
SENTENCES = (
    "He sat on the bank of the river.",
    "They walked along the bank of the stream.",
    "Trees grow along the river bank.",
    "Her bank lent the company money.",
    "The central bank raised its interest rates.",
    "The bank sold its bonds.",
)
EPILOG = """\
Nothing is written. Layer 0 sees only the word, so all its occurrences are equal there; the layers above see the sentence.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    many = f"running text (default: {len(SENTENCES)} sentences with {WORD})"
    parser.add_argument("sentences", nargs="*", metavar="SENTENCE", help=many)
    add_option(parser, "--word", "a token that occurs at least twice in them", WORD, metavar="TOKEN")
    add_embed_option(parser, "model")


def _touches(args: argparse.Namespace) -> locations.Touched:
    return locations.Touched(locations.model(args.model))


def _run(args: argparse.Namespace) -> int:
    from elmo_store.embedded import embed

    try:
        embedded = embed(args.sentences or SENTENCES, args.model, dtype="float32")
    except (ImportError, ValueError) as error:
        raise CommandError(Exit.BAD_USAGE, str(error)) from error
    occurrences = [(n, i) for n, sentence in enumerate(embedded) for i, token in enumerate(sentence.tokens) if token == args.word]
    if len(occurrences) < 2:
        times = "a token only once" if occurrences else "not a token"
        raise CommandError(Exit.BAD_USAGE, f"{args.word!r} is {times} in these sentences: give at least two occurrences")
    shown = [_marked(embedded[n].tokens, i) for n, i in occurrences]
    vectors = np.stack([embedded[n].layers()[i] for n, i in occurrences])  # [occurrences, L+1, 2p]
    for layer in range(vectors.shape[1]):
        near, cosine = nearest(vectors[:, layer])
        print(f"\nlayer {layer}: each {args.word}, and the {args.word} nearest to it by cosine")
        if np.allclose(cosine, 1, atol=1e-4):
            print("  all are the same vector")
            continue
        width = max(map(len, shown))
        for text, other, value in zip(shown, near, cosine, strict=True):
            print(f"  {text:<{width}}  {value:.2f}  {shown[other]}")
    return Exit.COMPLETE


def _marked(tokens: tuple[str, ...], i: int) -> str:
    return " ".join((*tokens[:i], f"[{tokens[i]}]", *tokens[i + 1 :]))


def nearest(vectors: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """Of each of the vectors [n, width] the other one with the greatest cosine: its number [n], and the cosine [n]."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T  # [n, n]
    np.fill_diagonal(cosines, -np.inf)
    near = cosines.argmax(axis=1)
    return near, cosines[np.arange(len(near)), near]


COMMANDS = {"demo": Command(_add_arguments, _run, _touches, epilog=EPILOG, loads="PyTorch")}
