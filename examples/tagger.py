"""A part-of-speech tagger over precomputed stores: the learned mix of the biLM's layers, then one linear layer.

    elmo-store embed en_ewt-ud-train.conllu.xz --output out/ud-train
    elmo-store embed en_ewt-ud-test.conllu.xz --output out/ud-test
    python examples/tagger.py --train-labels en_ewt-ud-train.conllu.xz --test-labels en_ewt-ud-test.conllu.xz --save mix.th
    elmo-store mix out/ud-test --weights mix.th --output out/ud-test-mixed      # what was learned, as a store

The biLM is not loaded: the store has every layer of it. What is learned is γ and w (Peters et al. 2018, equation 1) and the
task's own layer.
"""

from typing import Any

import torch
from tagging_data import arguments, label_names, open_or_explain, train_and_test
from torch import nn

from elmo_store.torch import ScalarMix


class MixTagger(nn.Module):
    """γ Σ s_j h_j → linear."""

    def __init__(self, n_layers: int, channels: int, n_labels: int) -> None:
        super().__init__()
        self.mix = ScalarMix(n_layers=n_layers, dropout=0.1, l2=0.001)
        self.out = nn.Linear(channels, n_labels)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Scores [B, n, labels] of a batch with `states` [B, n, 2L+1, p]."""
        vectors = self.mix(states=batch["states"])  # [B, n, 2p]
        scores: torch.Tensor = self.out(vectors)
        return scores


def main() -> None:
    """Train, test, and say what the mix learned."""
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument("--save", metavar="FILE", help="the mix's state dict, for `elmo-store mix --weights`")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train = open_or_explain(args.train, args.train_labels)
    test = open_or_explain(args.test, args.test_labels)
    _, n_states, p = train[0]["states"].shape
    model = MixTagger((n_states + 1) // 2, 2 * p, len(label_names(train)))
    accuracy = train_and_test(model, model, model.mix.penalty, train, test, args.epochs)
    print(f"test accuracy {100 * accuracy:.2f}")
    print(f"s {' '.join(f'{share:.3f}' for share in model.mix.s.tolist())}  gamma {model.mix.gamma.item():.3f}")
    if args.save:
        torch.save(model.mix.state_dict(), args.save)


if __name__ == "__main__":
    main()
