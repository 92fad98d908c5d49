"""`ElmoEmbedder`: AllenNLP's class of the same name, over a store, or computing.

Source: `allennlp.commands.elmo.ElmoEmbedder` (0.9.0). That one carries LSTM states from call to call, so that its answers depend
on what it was asked before; here each sentence has its start state.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Literal

import numpy as np
import torch

from elmo_store.format.numbers import Array
from elmo_store.mixing.scalar_mix import layers_of_states
from elmo_store.storage.process import temporary_tag
from elmo_store.storage.root import Root
from elmo_store.store import Store
from elmo_store.store import open as open_store
from elmo_store.torch.bilm import BiLM, live_model
from elmo_store.torch.characters import CharacterIndexer, check_tokens
from elmo_store.torch.dataset import padded

_ORIGINAL = "https://allennlp.s3.amazonaws.com/models/elmo/2x4096_512_2048cnn_2xhighway/elmo_2x4096_512_2048cnn_2xhighway_"
DEFAULT_OPTIONS_FILE = f"{_ORIGINAL}options.json"
DEFAULT_WEIGHT_FILE = f"{_ORIGINAL}weights.hdf5"
DEFAULT_BATCH_SIZE = 64
_OF_LAYERS: dict[str, Callable[[Array], Array]] = {
    "all": lambda layers: layers,
    "top": lambda layers: layers[-1],
    "average": lambda layers: np.average(layers, axis=0),
}


class ElmoEmbedder:
    """The layers of tokenised sentences as float32 NumPy arrays [L+1, n, 2p]: [3, n, 1024] of the published models.

    A store's sentences are found by their text and read; those that it does not have are computed by the model that is given,
    which must be the store's. Without a store all are computed. Computing needs the extra ``embed``.

    Args:
        options_file, weight_file: a model's files, as paths or URLs; without a store by default those of the published model
            "original", as AllenNLP's (`elmo_store.torch.embedder.DEFAULT_OPTIONS_FILE` and `DEFAULT_WEIGHT_FILE`). Of a weight
            file alone the options beside it are taken.
        cuda_device: -1 computes on the CPU, the number of the process's current GPU there.
        store: an open store with every state of its model (or a view of one), or its URL.
        model: in place of the two files a name, a folder or a URL, as ``elmo-store embed --model``.
        start_state: without a store, what every sentence starts from: "zero", as in the first batch of AllenNLP's `ElmoEmbedder`,
            or "warm".

    Attributes:
        elmo_bilm: what stands for AllenNLP's biLM.
        indexer: what stands for AllenNLP's `ELMoTokenCharactersIndexer`.

    Raises:
        StoreError: a store without some states.
        ImportError, ValueError: as of `elmo_store.embed`. Also a model that can't be found or read, with its name and the remedy.
    """

    def __init__(
        self,
        options_file: str | os.PathLike[str] | None = None,
        weight_file: str | os.PathLike[str] | None = None,
        cuda_device: int = -1,
        *,
        store: Store | str | os.PathLike[str] | None = None,
        model: str | None = None,
        start_state: Literal["zero", "warm"] = "zero",
    ) -> None:
        if (
            cuda_device >= 0
            and torch.cuda.is_available()
            and cuda_device != torch.cuda.current_device()
        ):
            raise ValueError(
                f"cuda_device={cuda_device}: call torch.cuda.set_device({cuda_device}) first"
            )
        self.cuda_device = cuda_device
        if store is None and model is None and options_file is None and weight_file is None:
            options_file, weight_file = DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE
        readable: Store | None = (
            open_store(store) if isinstance(store, str | os.PathLike) else store
        )
        device = "cpu" if cuda_device < 0 else "cuda"
        live = live_model(
            readable, options_file, weight_file, model, start_state=start_state, device=device
        )
        self.indexer = CharacterIndexer()
        self.elmo_bilm = BiLM(readable, live)

    def embed_sentence(self, sentence: Sequence[str]) -> Array:
        """The layers [L+1, n, 2p] of one sentence. Errors as of `embed_batch`."""
        return self.embed_batch([sentence])[0]

    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[Array]:
        """The layers [L+1, n, 2p] of each sentence, in order; n is 0 of one without tokens.

        SentenceNotFoundError: the store lacks a sentence, and there is no model. TypeError: a sentence that is a string.
        """
        check_tokens(batch)
        without = slice(1, -1) if self.elmo_bilm.boundaries else slice(None)
        layers = (
            layers_of_states(rows[without]).swapaxes(0, 1)
            for rows in self.elmo_bilm.of_texts(batch)
        )
        return [np.ascontiguousarray(own, np.float32) for own in layers]

    def embed_sentences(
        self, sentences: Iterable[Sequence[str]], batch_size: int = DEFAULT_BATCH_SIZE
    ) -> Iterator[Array]:
        """The layers of each sentence, in order; ``batch_size`` of them are taken and made at a time, when they are asked for."""
        left = iter(sentences)
        while batch := list(islice(left, batch_size)):
            yield from self.embed_batch(batch)

    def batch_to_embeddings(
        self, batch: Sequence[Sequence[str]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Layers [B, L+1, longest, 2p], zeros behind each sentence, and the mask, int64 [B, longest]; on the ``cuda_device``."""
        rows = [torch.from_numpy(own.swapaxes(0, 1)) for own in self.embed_batch(batch)]
        no_rows = torch.zeros(0, 0, self.elmo_bilm.num_layers, self.elmo_bilm.get_output_dim())
        together, mask = padded(rows) if rows else (no_rows, torch.zeros(0, 0))
        device = "cpu" if self.cuda_device < 0 else f"cuda:{self.cuda_device}"
        return together.transpose(1, 2).to(device), mask.to(device, torch.int64)

    def embed_file(
        self,
        input_file: IO[str],
        output_file_path: str | os.PathLike[str],
        output_format: str = "all",
        batch_size: int = DEFAULT_BATCH_SIZE,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """Write the HDF5 file of `allennlp elmo`: a sentence a line, its tokens between any spaces. Needs h5py.

        The file takes its name when it is finished. Memory holds the text and a batch's vectors.

        Args:
            input_file: an open text file.
            output_file_path: on this machine; nothing may be there.
            output_format: "all" [L+1, n, 2p], "top" or "average" [n, 2p] in each dataset.
            batch_size: sentences at a time.
            forget_sentences: leave out sentence_to_index.
            use_sentence_keys: datasets are called by their lines instead of "0", "1", …, and there is no sentence_to_index.

        Raises:
            ValueError: another format; empty lines, by their numbers from 0.
            StoreError: lines that can't be names of datasets.
            FileExistsError: something is there.
        """
        import h5py

        from elmo_store.exports.hdf5 import write_sentences

        if output_format not in _OF_LAYERS:
            raise ValueError(
                f"output_format is {output_format!r}: known are {', '.join(_OF_LAYERS)}"
            )
        lines = [line.strip() for line in input_file]
        if blank := [number for number, line in enumerate(lines) if not line]:
            raise ValueError(f"the input has empty lines (counted from 0) at {blank}: remove them")
        root, name = (
            Root(os.path.dirname(os.path.abspath(output_file_path))),
            os.path.basename(output_file_path),
        )
        vectors = map(
            _OF_LAYERS[output_format],
            self.embed_sentences((line.split() for line in lines), batch_size),
        )
        names = lines if use_sentence_keys else map(str, range(len(lines)))
        unfinished = f"{temporary_tag()}{name}"
        try:
            if not root.exists(name):
                with h5py.File(root.path(unfinished), "w") as file:
                    index = not (forget_sentences or use_sentence_keys)
                    write_sentences(file, zip(names, lines, vectors, strict=True), index=index)
                if root.put_new(name, Path(root.path(unfinished))):
                    return
            raise FileExistsError(
                f"{output_file_path} is there already: remove it, or give another name"
            )
        finally:
            root.remove(unfinished)
