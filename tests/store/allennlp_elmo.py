"""AllenNLP 0.9.0's `Elmo`, as an oracle: written again from its equations, and the original where its wheel lies at hand.

The package itself no longer installs beside today's libraries (it pins spaCy 2.1, and imports boto3, flask, …). `original` takes
the few files that the module is made of out of the wheel and gives them empty stand-ins for what they import and never use.
"""

import builtins
import itertools
import sys
import types
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

ACTIVATIONS_OF = dict[str, Any]  # `activations`: L+1 tensors [B, n+2, 2p]; `mask` [B, n+2]
_FILES = (
    "common/checks", "nn/util", "modules/scalar_mix", "modules/highway", "modules/encoder_base",
    "modules/lstm_cell_with_projection", "modules/elmo_lstm", "data/token_indexers/elmo_indexer", "modules/elmo",
)  # fmt: skip


class Mix(nn.Module):
    """`allennlp.modules.scalar_mix.ScalarMix`, written again."""

    def __init__(self, size: int, do_layer_norm: bool, initial: Sequence[float] | None) -> None:
        super().__init__()
        self.do_layer_norm = do_layer_norm
        self.scalar_parameters = nn.ParameterList(
            [
                nn.Parameter(torch.tensor([w]), requires_grad=initial is None)
                for w in initial or [0.0] * size
            ]
        )
        self.gamma = nn.Parameter(torch.ones(1), requires_grad=initial is None)

    def forward(self, tensors: Sequence[torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(torch.cat(list(self.scalar_parameters)), dim=0)
        if self.do_layer_norm:
            real = mask.float().unsqueeze(-1)  # [B, n+2, 1]
            count = mask.sum() * tensors[0].shape[-1]
            normed = []
            for tensor in tensors:
                mean = (tensor * real).sum() / count
                variance = (((tensor * real - mean) * real) ** 2).sum() / count
                normed.append((tensor - mean) / torch.sqrt(variance + 1e-12))
            tensors = normed
        mixed: torch.Tensor = self.gamma * sum(
            w * tensor for w, tensor in zip(weights, tensors, strict=True)
        )
        return mixed


class Elmo(nn.Module):
    """`allennlp.modules.elmo.Elmo`, written again, over any biLM of its kind (``module=``)."""

    def __init__(
        self,
        num_output_representations: int,
        module: nn.Module,
        *,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        self._elmo_lstm = module
        self._keep = keep_sentence_boundaries
        self._dropout = nn.Dropout(dropout)
        self._n = num_output_representations
        for k in range(num_output_representations):
            n_layers = int(module.num_layers)  # type: ignore[arg-type]
            mix = Mix(n_layers, do_layer_norm, scalar_mix_parameters)
            self.add_module(f"scalar_mix_{k}", mix)

    def forward(self, ids: torch.Tensor) -> dict[str, Any]:
        output = self._elmo_lstm(ids)
        mask = output["mask"]
        kept = []
        for k in range(self._n):
            mixed = getattr(self, f"scalar_mix_{k}")(output["activations"], mask)
            if not self._keep:
                inner = mixed.new_zeros(mixed.shape[0], mixed.shape[1] - 2, mixed.shape[2])
                for i, length in enumerate(mask.sum(1).tolist()):
                    inner[i, : max(length - 2, 0)] = mixed[i, 1 : max(length - 1, 1)]
                mixed = inner
            kept.append(self._dropout(mixed))
        lengths = mask.sum(1) if self._keep else (mask.sum(1) - 2).clamp(min=0)
        return {
            "elmo_representations": kept,
            "mask": (torch.arange(kept[0].shape[1])[None] < lengths[:, None]).long(),
        }


def original_embedder(wheel: Path) -> types.ModuleType:
    """The wheel's `allennlp.commands.elmo`, but `batch_to_ids` (by the wheel's mapper), `lazy_groups_of` and the progress bar."""
    module: Any = original(wheel, "commands/elmo")
    mapper = module._ElmoBiLm.__init__.__globals__["ELMoCharacterMapper"]()

    def batch_to_ids(batch: list[list[str]]) -> torch.Tensor:
        return padded_ids(mapper, batch)

    def lazy_groups_of(iterator: Any, size: int) -> Any:
        return iter(lambda: list(itertools.islice(iterator, size)), [])

    module.__dict__.update(batch_to_ids=batch_to_ids, lazy_groups_of=lazy_groups_of)
    module.Tqdm.tqdm = lambda items: items
    module.ELMoTokenCharactersIndexer = type("Unused", (), {})
    return module


def padded_ids(mapper: Any, batch: Sequence[Sequence[str]]) -> torch.Tensor:
    """What `batch_to_ids` makes of an `ELMoCharacterMapper`'s words: zeros behind each sentence [B, longest, 50]."""
    longest = max(len(sentence) for sentence in batch)
    spelt = [[mapper.convert_word_to_char_ids(word) for word in sentence] for sentence in batch]
    return torch.tensor(
        [words + [[0] * 50] * (longest - len(words)) for words in spelt], dtype=torch.int64
    )


def original(wheel: Path, *more: str) -> types.ModuleType:
    """The module `allennlp.modules.elmo` of the wheel of 0.9.0 (or the last of ``more``), its unused imports stood in for."""
    before = dict(sys.modules)
    try:
        for name in ("overrides", "allennlp"):
            sys.modules[name] = _StandIn(name)
        sys.modules["overrides"].overrides = lambda method: method  # type: ignore[attr-defined]
        made = {}
        with zipfile.ZipFile(wheel) as archive:
            for file in (*_FILES, *more):
                name = "allennlp." + file.replace("/", ".")
                module = types.ModuleType(name)
                module.__dict__["__builtins__"] = {
                    **vars(builtins),
                    "__import__": _importing_stand_ins,
                }
                made[file] = sys.modules[name] = module
                exec(
                    compile(archive.read(f"allennlp/{file}.py"), f"{wheel}/{file}.py", "exec"),
                    module.__dict__,
                )
        return made[(*_FILES, *more)[-1]]
    finally:
        for name in [
            name for name in sys.modules if name.split(".")[0] in ("allennlp", "overrides")
        ]:
            del sys.modules[name]
        sys.modules.update(
            {name: module for name, module in before.items() if name not in sys.modules}
        )


class _Anything:
    """A class that can be subclassed, subscripted and asked to register: enough for a definition that is never used."""

    def __class_getitem__(cls, item: Any) -> type:
        return cls

    @classmethod
    def register(cls, name: str) -> Any:
        return lambda registered: registered


class _StandIn(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 (a package, for the import system)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "cached_path":
            return lambda path: path
        # block_orthogonal starts weights that the file's replace; classes are bases and annotations
        return _Anything if name[:1].isupper() else lambda *_, **__: None


def _importing_stand_ins(name: str, *arguments: Any, **named: Any) -> Any:
    """Import, but whatever of AllenNLP was not taken from the wheel is a stand-in."""
    if name.split(".")[0] == "allennlp":
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:i]), _StandIn(".".join(parts[:i])))
        return sys.modules[name]
    return __import__(name, *arguments, **named)
