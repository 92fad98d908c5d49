"""ELMo at the input and at the output of a task model, from one store: [x; ELMo_in] → BiLSTM → [h; ELMo_out] → labels.

    elmo-store embed en_ewt-ud-train.conllu.xz --output out/ud-train
    elmo-store embed en_ewt-ud-test.conllu.xz --output out/ud-test
    python examples/two_representations.py --train-labels en_ewt-ud-train.conllu.xz --test-labels en_ewt-ud-test.conllu.xz

Peters et al. 2018, section 3.2: x is the task's own vector of a word (here learned from the training words), and the task
reads the biLM twice with two mixes of their own, so that its input may want syntax where its output wants sense. The store
holds the layers once; a second representation costs four numbers.

Beside the mixes, --projection N adds what a mix can't do: a learned projection of all layers side by side to N numbers,
[h_0; … h_L] · W, where each layer keeps channels of its own. It costs (L+1) · 2p · N numbers.
"""

from collections import Counter
from typing import Any

import torch
from tagging_data import arguments, label_names, open_or_explain, train_and_test
from torch import nn

from elmo_store.torch import ScalarMix, layers_of_states

UNKNOWN = 0


class TaskModel(nn.Module):
    """A BiLSTM tagger with ELMo on both sides.

    Args:
        vocabulary: word → number from 1; 0 is for the others.
        n_layers, channels: L+1 and 2p of the store.
        width: of the word vectors and of the BiLSTM, both directions together.
        projection: numbers that the concatenated layers are projected to; 0 leaves the projection out.
    """

    def __init__(
        self, vocabulary: dict[str, int], n_layers: int, channels: int, n_labels: int, *, width: int = 64, projection: int = 0
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = nn.Embedding(len(vocabulary) + 1, width)
        self.elmo_in = ScalarMix(n_layers=n_layers, dropout=0.1, l2=0.001)
        self.elmo_out = ScalarMix(n_layers=n_layers, dropout=0.1, l2=0.001)
        self.projection = nn.Linear(n_layers * channels, projection) if projection else None
        self.lstm = nn.LSTM(width + channels + projection, width // 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(width + channels, n_labels)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Scores [B, n, labels] of a batch with `tokens`, `states` [B, n, 2L+1, p] and `mask` [B, n]."""
        states, mask = batch["states"], batch["mask"]
        numbers = torch.zeros(mask.shape, dtype=torch.int64)  # [B, n]
        for row, tokens in zip(numbers, batch["tokens"], strict=True):
            row[: len(tokens)] = torch.tensor([self.vocabulary.get(token, UNKNOWN) for token in tokens])
        given = [self.words(numbers), self.elmo_in(states=states)]  # [x; ELMo_in]: [B, n, width], [B, n, 2p]
        if self.projection is not None:
            given.append(torch.relu(self.projection(layers_of_states(states).float().flatten(2))))  # [B, n, projection]
        packed = nn.utils.rnn.pack_padded_sequence(
            torch.cat(given, dim=-1), mask.sum(dim=1), batch_first=True, enforce_sorted=False
        )
        h, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)  # [B, n, width]
        scores: torch.Tensor = self.out(torch.cat([h, self.elmo_out(states=states)], dim=-1))  # [h; ELMo_out]
        return scores

    def penalty(self) -> torch.Tensor:
        """λ‖w‖² of both mixes."""
        return self.elmo_in.penalty() + self.elmo_out.penalty()


def main() -> None:
    """Train, test, and say what each mix learned."""
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument("--projection", type=int, default=0, help="numbers that all layers side by side are projected to")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train = open_or_explain(args.train, args.train_labels)
    test = open_or_explain(args.test, args.test_labels)
    count = Counter(token for sentence in train.sentences.store.sentences() for token in sentence.tokens)
    words = sorted(word for word, n in count.items() if n > 1)  # the others teach the model what an unknown word is
    _, n_states, p = train[0]["states"].shape
    vocabulary = {word: i for i, word in enumerate(words, 1)}
    model = TaskModel(vocabulary, (n_states + 1) // 2, 2 * p, len(label_names(train)), projection=args.projection)
    accuracy = train_and_test(model, model, model.penalty, train, test, args.epochs)
    print(f"test accuracy {100 * accuracy:.2f}")
    for name, mix in (("input", model.elmo_in), ("output", model.elmo_out)):
        print(f"ELMo at the {name}: s {' '.join(f'{share:.3f}' for share in mix.s.tolist())}  gamma {mix.gamma.item():.3f}")


if __name__ == "__main__":
    main()
