"""The warm start state: what a fixed text leaves behind.

The published models were trained with state carried from sentence to sentence, so that zeros are a state they seldom
saw. `warm` is a function of the model alone, never of an earlier batch.

At full size it takes seconds to compute: that of a packaged model stands beside its weights.
"""

import hashlib
from functools import partial

import torch
from torch import Tensor

from model.bilm import char_cnn, lstm_layers, run_layers
from model.characters import boundary_words, spell
from model.files.registry import packaged_folders
from model.files.weights import BiLMWeights
from model.options import DIRECTIONS
from model.start_state import StartState
from model.threads import direction_pool

# Lewis Carroll, Alice's Adventures in Wonderland (1865, public domain), the opening, tokenised as the Penn Treebank.
# Never change it: the warm state of every model is defined by it.
WARM_TEXT = (
    "Alice was beginning to get very tired of sitting by her sister on the bank , and of having nothing to do : "
    "once or twice she had peeped into the book her sister was reading , but it had no pictures or "
    "conversations in it , `` and what is the use of a book , '' thought Alice `` without pictures or "
    "conversations ? ''",
    "So she was considering in her own mind ( as well as she could , for the hot day made her feel very sleepy "
    "and stupid ) , whether the pleasure of making a daisy-chain would be worth the trouble of getting up and "
    "picking the daisies , when suddenly a White Rabbit with pink eyes ran close by her .",
    "There was nothing so very remarkable in that ; nor did Alice think it so very much out of the way to hear "
    "the Rabbit say to itself , `` Oh dear !",
    "Oh dear !",
    "I shall be late ! ''",
)


def warm_state(weights: BiLMWeights) -> StartState:
    """The warm state of a model: from beside a packaged one, otherwise computed."""
    for folder in packaged_folders():
        if (folder / file_name(weights)).exists():
            return StartState.from_bytes((folder / file_name(weights)).read_bytes())
    return compute_warm(weights)


def file_name(weights: BiLMWeights) -> str:
    """The name of a model's warm state beside it: like the state it follows from the weights and the text."""
    key = hashlib.sha256("\n".join([weights.fingerprint, *WARM_TEXT]).encode()).hexdigest()
    return f"warm-{key[:32]}.safetensors"


def compute_warm(weights: BiLMWeights) -> StartState:
    """The state that WARM_TEXT leaves behind, read sentence by sentence from zeros with the state carried.

    Forward, it is the state after the last sentence's EOS; backward, where each sentence is read from its end to its
    start, the state after the last sentence's BOS. Computed in float64 and rounded once, so that neither the machine
    nor its number of threads shows in the result but for a rare last bit.
    """
    tensors = {
        name: t.double() for name, t in weights.tensors.items() if not name.startswith("lstm.")
    }
    bos, eos = boundary_words(weights.lexicon)
    sentences = [[bos, *line.split(" "), eos] for line in WARM_TEXT]
    ids = [
        spell(words, weights.options.max_characters_per_token, weights.lexicon)
        for words in sentences
    ]
    with torch.no_grad():
        x = [
            char_cnn(tensors, weights.options, torch.from_numpy(sentence).long())
            for sentence in ids
        ]  # [n+2, p] each
    # One token at a time is too little work for several threads: two of them took twice as long as one.
    with direction_pool(len(DIRECTIONS), 1) as pool:
        ends = list(pool.map(partial(_run_warm, weights, sentences=x), DIRECTIONS))
    h, c = (torch.stack(parts).float() for parts in zip(*ends, strict=True))
    return StartState("warm", h, c)


@torch.no_grad()
def _run_warm(
    weights: BiLMWeights, direction: str, sentences: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """h [L, p] and c [L, d] in float64 that one direction is left with."""
    options = weights.options
    prefix = f"lstm.{direction}"
    layers = lstm_layers(
        {n: t.double() for n, t in weights.tensors.items() if n.startswith(prefix)},
        options,
        direction,
    )
    h = torch.zeros(options.n_layers, 1, options.projection_dim, dtype=torch.float64)  # [L, 1, p]
    c = torch.zeros(options.n_layers, 1, options.dim, dtype=torch.float64)  # [L, 1, d]
    for x in sentences:
        read = x if direction == "fwd" else x.flip(0)
        _, h, c = run_layers(layers, read[:, None], h, c, options.use_skip_connections)
    return h[:, 0], c[:, 0]
