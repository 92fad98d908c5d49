"""`elmo_store.torch.Elmo` over a store beside AllenNLP's own module over the biLM: values, losses of training, state dicts."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import elmo_store
from elmo_store.errors import SentenceNotFoundError, StoreError
from elmo_store.format.characters import char_ids
from elmo_store.torch import Elmo, ElmoEmbedder, SentenceDataset, batch_to_ids, collate
from elmo_store.torch.characters import tokens_of_ids
from model.bilm import char_cnn, lstm_layers, run_layers
from model.characters import BOS, EOS
from model.files.registry import random_weights
from model.options import DIRECTIONS
from tests.pipeline.conftest import TINY, zero_stores
from tests.store import allennlp_elmo
from tests.store.support import make_store

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "mat",
    ",",
    "naïve",
    "dogs",
    "ran",
    "東京",
    "</S>",
    "x" * 60,
    "it",
    ".",
]
SENTENCES = [
    [WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(1 + (i * 5) % 9)] for i in range(48)
]
Theirs = Callable[..., nn.Module]
pytestmark = pytest.mark.usefixtures(
    "one_thread"
)  # losses are compared: additions are made in one order

Run = Callable[[nn.Module, torch.Tensor], dict[str, Any]]


class ZeroStartBiLM(nn.Module):
    """The plain biLM as AllenNLP's modules ask for one; each sentence starts from zeros."""

    num_layers = TINY.n_layers + 1

    def __init__(self) -> None:
        super().__init__()
        self.tensors = random_weights(TINY).tensors

    @torch.no_grad()
    def forward(self, ids: torch.Tensor) -> dict[str, Any]:
        lengths = (ids > 0).any(-1).sum(-1)
        longest, p = ids.shape[1] + 2, TINY.projection_dim
        layers = torch.zeros(self.num_layers, len(ids), longest, 2 * p)
        bos, eos = torch.from_numpy(char_ids([BOS, EOS])).long()
        for i, (own, n) in enumerate(zip(ids, lengths.tolist(), strict=True)):
            x = char_cnn(self.tensors, TINY, torch.cat([bos[None], own[:n], eos[None]]))
            layers[0, i, : n + 2] = torch.cat([x, x], dim=1)
            for k, direction in enumerate(DIRECTIONS):
                read = x.flip(0) if k else x
                zeros = torch.zeros(TINY.n_layers, 1, p), torch.zeros(TINY.n_layers, 1, TINY.dim)
                found = run_layers(
                    lstm_layers(self.tensors, TINY, direction),
                    read[:, None],
                    *zeros,
                    TINY.use_skip_connections,
                )[0]
                layers[1:, i, : n + 2, k * p : (k + 1) * p] = (found.flip(1) if k else found)[
                    :, :, 0
                ]
        mask = torch.arange(longest)[None] < (lengths + 2)[:, None]
        return {"activations": list(layers), "mask": mask}


@pytest.fixture(scope="module", params=["written again", "the original"])
def theirs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Theirs:
    """AllenNLP's `Elmo` with the tiny model, its biLM starting each batch from zeros."""
    if request.param == "written again":
        return lambda n, **given: allennlp_elmo.Elmo(n, ZeroStartBiLM(), **given)
    wheel = os.environ.get("ELMO_STORE_ALLENNLP")
    if not wheel:
        pytest.skip(
            "no wheel: pip download --no-deps allennlp==0.9.0, and its path in ELMO_STORE_ALLENNLP"
        )
    folder = tmp_path_factory.mktemp("published")
    random_weights(TINY).save_hdf5(folder)
    module = allennlp_elmo.original(Path(wheel))

    def make(n: int, **given: Any) -> nn.Module:
        elmo: nn.Module = module.Elmo(
            str(folder / "options.json"), str(folder / "weights.hdf5"), n, **given
        )
        # Its LSTM carries state from batch to batch; a store's sentences start from zeros each.
        elmo.register_forward_pre_hook(lambda *_: elmo._elmo_lstm._elmo_lstm.reset_states())  # type: ignore[operator, union-attr]
        return elmo

    return make


@pytest.fixture(scope="module")
def stores(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    """Stores of SENTENCES in float32, from zeros; by whether they have boundaries."""
    rows = elmo_store.embed(SENTENCES, str(tiny_model), dtype="float32", start_state="zero")
    made = zero_stores(SENTENCES, tiny_model, tmp_path_factory.mktemp("stores"))
    first = elmo_store.open(made[False]).sentence(0)
    assert first.tokens == tuple(SENTENCES[0])
    assert first.read().tobytes() == rows[0].read().tobytes()
    return made


BATCHES = [[3, 1, 20, 7], [0], [47, 5, 5, 11, 30]]


@pytest.mark.parametrize("boundaries", [False, True])
@pytest.mark.parametrize("given", [{}, {"scalar_mix_parameters": [0.5, -1.0, 2.0]}])
def test_representations_and_mask_are_theirs(
    theirs: Theirs, stores: dict[bool, str], boundaries: bool, given: dict[str, Any]
) -> None:
    ours, own = Elmo(stores[boundaries], 2, **given).eval(), theirs(2, **given).eval()
    for batch in BATCHES:
        wanted = own(batch_to_ids([SENTENCES[i] for i in batch]))
        for inputs in (
            batch,
            torch.tensor(batch),
            [SENTENCES[i] for i in batch],
            batch_to_ids([SENTENCES[i] for i in batch]),
        ):
            found = ours(inputs)
            assert torch.equal(found["mask"], wanted["mask"])
            assert found["mask"].dtype == (1 - found["mask"]).dtype == torch.int64
            for a, b in zip(
                found["elmo_representations"], wanted["elmo_representations"], strict=True
            ):
                torch.testing.assert_close(a, b, atol=3e-6, rtol=1e-5)
    assert ours.get_output_dim() == 32
    assert [p.requires_grad for p in ours.parameters()] == [not given] * 8


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_norms_and_boundaries_are_theirs(
    theirs: Theirs, stores: dict[bool, str], keep: bool, layer_norm: bool
) -> None:
    given: dict[str, Any] = {"keep_sentence_boundaries": keep, "do_layer_norm": layer_norm}
    ours, own = Elmo(stores[True], 1, **given).eval(), theirs(1, **given).eval()
    for batch in BATCHES:
        wanted, found = own(batch_to_ids([SENTENCES[i] for i in batch])), ours(batch)
        assert torch.equal(found["mask"], wanted["mask"])
        a, b = (
            found["elmo_representations"][0],
            wanted["elmo_representations"][0],
        )  # padding too, which the norm moves
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_it_is_made_as_theirs_is(
    theirs: Theirs, stores: dict[bool, str], tiny_model: Path, tmp_path: Path
) -> None:
    """Files by their names, a vocabulary and its word ids, a dictionary of settings; with a store or computing everything."""
    random_weights(TINY).save_hdf5(tmp_path)
    files: dict[str, Any] = {
        "options_file": str(tmp_path / "options.json"),
        "weight_file": str(tmp_path / "weights.hdf5"),
    }
    ids = batch_to_ids([SENTENCES[i] for i in BATCHES[0]])
    vocabulary = ["", *WORDS]
    wanted = theirs(2, dropout=0).eval()(ids)
    settings: dict[str, Any] = {"num_output_representations": 2, "dropout": 0.0}
    for elmo in (
        Elmo(**files, **settings, vocab_to_cache=vocabulary),
        Elmo(stores[False], **files, **settings),
        Elmo.from_params({**files, **settings}),
        Elmo.from_params({"store": stores[False], **settings}),
    ):
        found = elmo.eval()(ids, torch.ones(ids.shape[:2], dtype=torch.int64))
        assert torch.equal(found["mask"], wanted["mask"])
        for a, b in zip(found["elmo_representations"], wanted["elmo_representations"], strict=True):
            torch.testing.assert_close(a, b, atol=3e-6, rtol=1e-5)
    kept: dict[str, Any] = {"keep_sentence_boundaries": True, "do_layer_norm": True, "dropout": 0.0}
    a, b = (
        elmo.eval()(ids)["elmo_representations"][0]
        for elmo in (Elmo(**files, **kept), theirs(1, **kept))
    )
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    wrongs: list[dict[str, Any]] = [
        {},
        {"options_file": files["options_file"]},
        {**files, "model": "default"},
    ]
    for wrong in wrongs:
        with pytest.raises(TypeError, match=r"give|pass both"):
            Elmo(**wrong)


def test_allennlps_own_positional_call_loads_the_files(tmp_path: Path) -> None:
    random_weights(TINY).save_hdf5(tmp_path)
    options, weights = tmp_path / "options.json", str(tmp_path / "weights.hdf5")
    new_elmo: Any = Elmo  # whose types are those of our own call
    calls = [
        new_elmo(str(options), weights, 2, dropout=0.0),
        new_elmo(options, Path(weights), 2, False, False, 0.0),
        new_elmo(str(options), weight_file=weights, num_output_representations=2, dropout=0.0),
        new_elmo(str(options), weights, 2, False, False, 0.0, ["", *WORDS], False, None),
    ]
    by_name = Elmo(
        options_file=options, weight_file=weights, num_output_representations=2, dropout=0.0
    )
    ids = batch_to_ids(SENTENCES[:2])
    expected = by_name(ids)["elmo_representations"]
    for elmo in calls:
        found = elmo(ids)["elmo_representations"]
        assert len(found) == 2
        assert torch.equal(found[0], expected[0])
    normed = new_elmo(str(options), weights, 1, False, True, 0.0, None, True, [0.0, 0.0, 1.0])
    assert normed(ids)["elmo_representations"][0].shape[1] == ids.shape[1] + 2
    assert normed.scalar_mix_0.layer_norm == "batch"
    assert normed.scalar_mix_0.w.tolist() == [0.0, 0.0, 1.0]


def test_a_positional_call_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    new_elmo: Any = Elmo
    with pytest.raises(TypeError, match="two values for the argument 'options_file'"):
        new_elmo("options.json", "weights.hdf5", 2, options_file="options.json")
    with pytest.raises(TypeError, match="10 positional arguments"):
        new_elmo("options.json", "weights.hdf5", 2, False, False, 0.5, None, False, None, None)
    with pytest.raises(TypeError, match="options are of a weight_file"):
        new_elmo("options.json")
    with pytest.raises(Exception, match=r"there is no file .*missing\.hdf5"):
        new_elmo("options.json", str(tmp_path / "missing.hdf5"), 2)
    with pytest.raises(TypeError, match=r"a store is store=…"):
        ElmoEmbedder("out/store")


def test_a_store_s_path_is_opened(stores: dict[bool, str]) -> None:
    path = Path(stores[False])
    expected = Elmo(stores[False], 1, dropout=0.0)([0])["elmo_representations"][0]
    assert torch.equal(Elmo(path, 1, dropout=0.0)([0])["elmo_representations"][0], expected)
    assert len(SentenceDataset(path)) == len(SENTENCES)
    assert len(ElmoEmbedder(store=path).embed_batch(SENTENCES[:2])) == 2


class Tagger(nn.Module):
    """The example tagger: ELMo, then one linear layer."""

    def __init__(self, elmo: nn.Module) -> None:
        super().__init__()
        self.elmo = elmo
        self.out = nn.Linear(32, 5)

    def forward(self, inputs: Any) -> torch.Tensor:
        return self.out(self.elmo(inputs)["elmo_representations"][0])


def losses(elmo: nn.Module, inputs: Callable[[list[int]], Any], steps: int = 40) -> list[float]:
    """Of training the tagger with dropout, Adam and one seed, on the same batches."""
    torch.manual_seed(11)
    tagger = Tagger(elmo).train()
    optimiser = torch.optim.Adam([p for p in tagger.parameters() if p.requires_grad], lr=0.01)
    order = torch.Generator().manual_seed(3)
    found = []
    for _ in range(steps):
        batch = torch.randperm(len(SENTENCES), generator=order)[:8].tolist()
        scores = tagger(inputs(batch))  # [B, n, 5]
        gold = torch.full(scores.shape[:2], -100)
        for row, i in zip(gold, batch, strict=True):
            row[: len(SENTENCES[i])] = torch.tensor([len(word) % 5 for word in SENTENCES[i]])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), gold.flatten(), ignore_index=-100)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


@pytest.mark.slow
def test_training_gives_their_losses(theirs: Theirs, stores: dict[bool, str]) -> None:
    """Same seeds, dropout 0.5: each of 40 losses agrees to 1e-4 of itself; it falls meanwhile."""

    def ids(batch: list[int]) -> torch.Tensor:
        return batch_to_ids([SENTENCES[i] for i in batch])

    wanted = losses(theirs(1), ids)
    np.testing.assert_allclose(
        losses(Elmo(stores[False], 1), lambda batch: batch), wanted, rtol=1e-4
    )
    np.testing.assert_allclose(losses(Elmo(stores[True], 1), ids), wanted, rtol=1e-4)
    assert np.mean(wanted[-8:]) < 0.8 * np.mean(wanted[:4])


def test_state_dicts_go_both_ways(theirs: Theirs, stores: dict[bool, str]) -> None:
    ours, own = Elmo(stores[False], 2), theirs(2)
    with torch.no_grad():
        for i, parameter in enumerate(own.parameters()):
            if parameter.numel() == 1:
                parameter.fill_(i + 0.5)
    ours.load_state_dict(own.state_dict())  # strict: their biLM's tensors are passed over
    mixes = {
        name: value for name, value in own.state_dict().items() if name.startswith("scalar_mix_")
    }
    assert sorted(ours.state_dict()) == sorted(mixes)
    assert len(mixes) == 8
    assert all(torch.equal(ours.state_dict()[name], value) for name, value in mixes.items())
    other = theirs(2)
    result = other.load_state_dict(ours.state_dict(), strict=False)
    assert not result.unexpected_keys
    assert all(name.startswith("_elmo_lstm.") for name in result.missing_keys)
    assert all(torch.equal(other.state_dict()[name], value) for name, value in mixes.items())
    inside = nn.ModuleDict({"elmo": ours})
    inside.load_state_dict(
        {f"elmo.{name}": value for name, value in own.state_dict().items()}
    )  # in a task model too
    with pytest.raises(RuntimeError, match="no_such"):
        ours.load_state_dict({**mixes, "no_such": torch.zeros(1)})


@pytest.mark.slow
def test_the_mixes_as_programs_ask_for_them(stores: dict[bool, str]) -> None:
    """L2 over the mixes' logits, a task model that holds and trains the mixes, γ left alone: as published code does each."""
    elmo: Any = Elmo(stores[False], 2, dropout=0)
    assert elmo.num_output_representations == len(elmo._scalar_mixes) == 2
    assert list(elmo._scalar_mixes) == [elmo.scalar_mix_0, elmo.scalar_mix_1]
    with torch.no_grad():
        elmo.scalar_mix_1.scalar_parameters[2].fill_(3.0)
    assert (
        sum(
            p.pow(2).sum() * 0.5 for mix in elmo._scalar_mixes for p in mix.scalar_parameters
        ).item()
        == 4.5
    )
    names = ["scalar_parameters.0", "scalar_parameters.1", "scalar_parameters.2", "gamma"]
    assert sorted(elmo.state_dict()) == sorted(
        f"scalar_mix_{k}.{name}" for k in range(2) for name in names
    )

    held = nn.ModuleList(elmo._scalar_mixes)
    elmo.scalar_mix_0.gamma.requires_grad = False
    before = elmo.scalar_mix_0.scalar_parameters[0].item()
    elmo([3, 1])["elmo_representations"][0].sum().backward()
    torch.optim.SGD([p for p in held.parameters() if p.requires_grad], lr=1.0).step()
    assert elmo.scalar_mix_0.gamma.item() == 1.0
    assert elmo.scalar_mix_0.scalar_parameters[0].item() != before


def test_the_bilm_as_programs_ask_for_it(theirs: Theirs, stores: dict[bool, str]) -> None:
    """Its layers mixed by a mix of the program's own or by one of ours; states reset, parameters frozen, sizes asked for."""
    ours: Any = Elmo(stores[True], 1, keep_sentence_boundaries=True).eval()
    own: Any = theirs(1, keep_sentence_boundaries=True).eval()
    bilm = ours._elmo_lstm
    assert bilm.num_layers == 3
    assert bilm.get_output_dim() == ours.get_output_dim() == 32
    assert [p for p in bilm.parameters() if p.requires_grad] == []
    bilm._elmo_lstm.stateful = False
    bilm._elmo_lstm.reset_states()
    for batch in BATCHES:
        ids = batch_to_ids([SENTENCES[i] for i in batch])
        getattr(own._elmo_lstm, "_elmo_lstm", bilm._elmo_lstm).reset_states()
        found, wanted = bilm(ids), own._elmo_lstm(ids)
        assert torch.equal(found["mask"], wanted["mask"].long())
        for a, b in zip(found["activations"], wanted["activations"], strict=True):
            torch.testing.assert_close(a, b, atol=3e-6, rtol=1e-5)
        mixed = ours.scalar_mix_0(found["activations"], found["mask"])
        assert mixed.shape == (*found["mask"].shape, 32)
        torch.testing.assert_close(
            ours._dropout(mixed), ours(ids)["elmo_representations"][0], atol=1e-6, rtol=1e-5
        )
        torch.testing.assert_close(mixed, own(ids)["elmo_representations"][0], atol=3e-6, rtol=1e-5)
    with pytest.raises(StoreError, match=r"rows of BOS and EOS.*--boundaries"):
        Elmo(stores[False], 1)._elmo_lstm(ids)


def test_more_dimensions_of_ids(stores: dict[bool, str]) -> None:
    elmo = Elmo(stores[False], 1, dropout=0).eval()
    ids = batch_to_ids([SENTENCES[i] for i in (3, 1, 20, 7, 2, 5)])
    flat, deep = elmo(ids), elmo(ids.view(2, 3, *ids.shape[1:]))
    assert deep["mask"].shape == (2, 3, ids.shape[1])
    assert torch.equal(
        deep["elmo_representations"][0].flatten(0, 1), flat["elmo_representations"][0]
    )
    longer = elmo(nn.functional.pad(ids, (0, 0, 0, 4)))  # as a batch of other tasks' padding may be
    assert longer["mask"].shape == (6, ids.shape[1] + 4)
    assert not longer["mask"][:, -4:].any()


def test_a_loader_reads_for_it(stores: dict[bool, str]) -> None:
    elmo = Elmo(stores[True], 1, dropout=0).eval()
    for batch in DataLoader(SentenceDataset(stores[True]), batch_size=16, collate_fn=collate):
        read, own = elmo(batch), elmo(batch["index"])
        assert torch.equal(read["mask"], own["mask"])
        assert torch.equal(read["elmo_representations"][0], own["elmo_representations"][0])


def test_a_sentence_that_was_never_embedded_is_named_or_computed(
    stores: dict[bool, str], tiny_model: Path
) -> None:
    new = ["never", "seen", "naïve", "x" * 60]
    batch = [SENTENCES[3], new, [], new]
    for inputs in (batch, batch_to_ids(batch)):
        with pytest.raises(
            SentenceNotFoundError, match=r"these 4 tokens: never seen naïve x+: embed it"
        ):
            Elmo(stores[False], 1)(inputs)
    for boundaries, store in stores.items():
        elmo = Elmo(
            store, 1, dropout=0, keep_sentence_boundaries=boundaries, model=str(tiny_model)
        ).eval()
        elmo = pickle.loads(pickle.dumps(elmo))
        wanted = allennlp_elmo.Elmo(
            1, ZeroStartBiLM(), dropout=0, keep_sentence_boundaries=boundaries
        ).eval()
        whole = [SENTENCES[3], new, new]
        for inputs in (whole, batch_to_ids(whole)):
            found = elmo(inputs)["elmo_representations"][0]
            torch.testing.assert_close(
                found, wanted(batch_to_ids(whole))["elmo_representations"][0], atol=3e-6, rtol=1e-5
            )
        assert elmo(batch)["mask"].sum(1).tolist() == [
            len(one) + 2 * boundaries if one else 0 for one in batch
        ]
    with pytest.raises(StoreError, match=r"random-small is not the model of .*: its fingerprint"):
        Elmo(stores[False], 1, model="random-small")([new])
    cut = batch_to_ids([["é" * 30 + "x", "a" + "é" * 40]])
    with pytest.raises(ValueError, match="unexpected end of data"):
        Elmo(stores[False], 1, model=str(tiny_model))(cut)


def test_an_empty_batch_and_one_without_tokens(stores: dict[bool, str]) -> None:
    cases: list[tuple[Any, tuple[int, ...]]] = [
        ([], (0, 0, 32)),
        ([[], []], (2, 0, 32)),
        (torch.zeros(0, dtype=torch.int64), (0, 0, 32)),
        (batch_to_ids([]), (0, 0, 32)),
        (batch_to_ids([[], []]), (2, 0, 32)),
        (torch.zeros(0, 3, 5, 50, dtype=torch.int64), (0, 3, 5, 32)),
    ]
    modules = [
        Elmo(stores[False], 1).eval(),
        Elmo(stores[True], 1).eval(),
        Elmo(stores[True], 1, do_layer_norm=True).eval(),
    ]
    for elmo in modules:
        for inputs, shape in cases:
            found = elmo(inputs)
            assert found["elmo_representations"][0].shape == shape
            assert found["mask"].shape == shape[:-1]


def test_an_empty_batch_of_an_embedder_is_empty_tensors(stores: dict[bool, str]) -> None:
    embedder = ElmoEmbedder(store=stores[False])
    assert embedder.embed_batch([]) == []
    vectors, mask = embedder.batch_to_embeddings([])
    assert (vectors.shape, mask.shape) == ((0, 3, 0, 32), (0, 0))


@pytest.mark.slow  # importing the compiler takes seconds
def test_a_compiled_module_reads_and_learns_as_itself(stores: dict[bool, str]) -> None:
    elmo = Elmo(stores[False], 1, dropout=0.0)
    compiled = torch.compile(elmo, backend="eager")
    for inputs in ([3, 1, 20], torch.tensor([0, 7]), SENTENCES[4:9], batch_to_ids(SENTENCES[:1])):
        expected = elmo(inputs)
        found = compiled(inputs)
        assert torch.equal(found["mask"], expected["mask"])
        torch.testing.assert_close(
            found["elmo_representations"][0], expected["elmo_representations"][0]
        )
    found["elmo_representations"][0].sum().backward()
    assert elmo.get_parameter("scalar_mix_0.gamma").grad is not None


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.int64), TypeError, r"int64 of shape \(2, 3\)"),
        (torch.zeros(2, 3, 50), TypeError, "float32"),
        (["a sentence"], TypeError, "a list of sentences"),
        ("a sentence", TypeError, "a list of sentences"),
        ({"index": [1]}, TypeError, "a batch has index"),
        (torch.full((1, 2, 50), 7), ValueError, "begins each with 259"),
        (
            torch.cat([torch.zeros(1, 1, 50), torch.ones(1, 1, 50)], 1).long(),
            ValueError,
            "zeros between",
        ),
        ([10**6], SentenceNotFoundError, "no sentence 1000000"),
    ],
)
def test_inputs_of_another_kind(
    stores: dict[bool, str], inputs: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Elmo(stores[False], 1)(inputs)


def test_what_a_store_cannot_give(stores: dict[bool, str], tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="requires_grad=True trains the biLM"):
        Elmo(stores[False], 1, requires_grad=True)
    for name in ("do_layer_norm", "keep_sentence_boundaries"):
        with pytest.raises(StoreError, match=f"{name} needs the rows of BOS and EOS.*--boundaries"):
            Elmo(stores[False], 1, **{name: True})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"2 logits, .* has 3 layers"):
        Elmo(stores[False], 1, scalar_mix_parameters=[0.0, 1.0])
    make_store(str(tmp_path / "some"), states=("x", "fwd1"))
    with pytest.raises(StoreError, match="no layers can be made: embed all states"):
        Elmo(str(tmp_path / "some"), 1)


def test_ids_are_read_back_as_their_words() -> None:
    words = [*WORDS, "é" * 24, "<S>", "", "</s>"]
    (found,) = tokens_of_ids(batch_to_ids([words]).numpy())
    assert found == [word.encode()[:48] for word in words]
