"""Write tests/model/files/manylangs: a tiny model of ELMoForManyLangs in its own files, and what its own code makes of sentences.

    pip install --no-deps elmoformanylangs==0.0.4.post2 'overrides<4'; python -m tests.model.files.write_manylangs

`golden.npz` holds one array [layers, n, 2p] for each of `SENTENCES`, by `Model.forward` in evaluation mode; each sentence is
the first that the (stateful) encoder sees. The state dicts are saved as torch did in 2018, before its zip files.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).parent / "manylangs"
SENTENCES = [
    ["the", "cat", "sat"],
    ["naïve", "東京", "cat", "\u3000", "Zz", "the"],
    ["a" * 60, "a" * 12, "<bos>", ""],
    ["the"],
    [
        "<S>",
        "the",
        "</S>",
        "<oov>",
        "<pad>",
        "<bos>",
        "cat",
        "<eos>",
        "<bow>",
        "<eow>",
    ],  # spelt, but for <bos> and <eos>
]
WORDS = ["<oov>", "<bos>", "<eos>", "<pad>", "\u3000", "the", "cat", "naïve", "a" * 8]
CHARACTERS = ["<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>", "\u3000", *"thecasnïv東Z"]
CONFIG = {
    "encoder": {"name": "elmo", "projection_dim": 6, "cell_clip": 0.7, "proj_clip": 0.4, "dim": 9, "n_layers": 2},
    "token_embedder": {
        "name": "cnn", "activation": "relu", "filters": [[1, 3], [2, 4], [3, 5]], "n_highway": 2,
        "word_dim": 5, "char_dim": 4, "max_characters_per_token": 10,
    },
    "classifier": {"name": "sampled_softmax", "n_samples": 8192},
    "dropout": 0.1,
}  # fmt: skip


def main() -> None:
    """Write the folder."""
    from elmoformanylangs.elmo import read_list  # type: ignore[import-not-found]
    from elmoformanylangs.frontend import Model, create_one_batch  # type: ignore[import-not-found]
    from elmoformanylangs.modules.embedding_layer import EmbeddingLayer  # type: ignore[import-not-found]

    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "config.json").write_text(
        json.dumps({"config_path": "/somewhere/configs/tiny.json", "seed": 1, "model": "m"})
    )
    (FOLDER / "tiny.json").write_text(json.dumps(CONFIG, indent=1))
    tables = {}
    for name, tokens in (("char", CHARACTERS), ("word", WORDS)):
        lines = [f"{token}\t{number}" for number, token in enumerate(tokens)]
        (FOLDER / f"{name}.dic").write_text("\n".join(lines) + "\n", encoding="utf-8")
        tables[name] = {token: number for number, token in enumerate(tokens)}
    torch.manual_seed(1)
    sizes: Any = CONFIG["token_embedder"]
    embedders = [
        EmbeddingLayer(sizes[f"{name}_dim"], tables[name], fix_emb=False)
        for name in ("word", "char")
    ]
    model = Model(CONFIG, *embedders).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    for part in ("token_embedder", "encoder"):
        torch.save(
            getattr(model, part).state_dict(),
            FOLDER / f"{part}.pkl",
            _use_new_zipfile_serialization=False,
        )
    golden = {}
    for i, sentence in enumerate(SENTENCES):
        read, _ = read_list([sentence], CONFIG["token_embedder"]["max_characters_per_token"])  # type: ignore[index]
        words, characters, _, masks = create_one_batch(read, tables["word"], tables["char"], CONFIG)
        model.encoder.reset_states()
        with torch.no_grad():
            golden[str(i)] = model.forward(words, characters, masks)[:, 0, 1:-1].numpy()
    np.savez(FOLDER / "golden.npz", **golden)


if __name__ == "__main__":
    main()
