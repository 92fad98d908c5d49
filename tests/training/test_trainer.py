"""Training as a whole: it learns, it resumes exactly, it exports what it trained, and it cannot see what it predicts."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from elmo_store.format.characters import char_ids
from model.engine.embedder import Embedder, EngineSettings
from model.errors import TrainingError
from model.files.weights import BiLMWeights
from model.options import DIRECTIONS, BiLMOptions
from model.start_state import StartState
from model.training import run
from model.training.corpus import Corpus, Epoch, shuffle_sentences
from model.training.evaluate import evaluate
from model.training.trainer import Recipe, Trainer
from tests.model.lanes import embed_carried, plain_lane


def trained(trainer: Trainer, batches: int) -> list[float]:
    """Mean loss of each batch, both directions added."""
    steps = trainer.train()
    losses = []
    for _ in range(batches):
        step = next(steps)
        losses.append(
            sum(
                loss / max(1.0, count)
                for loss, count in zip(step.loss, step.predictions, strict=True)
            )
        )
    return losses


@pytest.fixture(scope="module")
def done(small_options: BiLMOptions, recipe: Recipe, corpus: Corpus) -> Trainer:
    trainer = Trainer.fresh(small_options, recipe, corpus, dtype=torch.float32)
    trained(trainer, 180)
    return trainer


def test_it_learns_what_there_is_to_learn(done: Trainer, sentences: list[list[str]]) -> None:
    found = evaluate(done.network, done.softmax_weights(), sentences[:300])
    assert found.predictions == sum(len(sentence) + 1 for sentence in sentences[:300])
    assert found.unknown == 0
    # Six predictions a sentence: chances of 3, 5, 2 and nothing more to know: exp(log(30) / 6) = 1.76, either way.
    for perplexity in found.perplexity:
        assert 1.7 < perplexity < 2.4  # 11 at the start


def test_a_gradient_that_is_not_finite_ends_the_run_and_changes_nothing(
    small_options: BiLMOptions, recipe: Recipe, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer.fresh(small_options, recipe, corpus)
    steps = trainer.train()
    next(steps)
    before = {name: value.detach().clone() for name, value in trainer.network.parameters.items()}
    softmax = trainer.rows.weight.clone()
    clip = torch.nn.utils.clip_grad_norm_

    def spoilt(parameters: list[torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
        grad = parameters[0].grad
        assert grad is not None
        grad.fill_(math.nan)
        return clip(parameters, *args, **kwargs)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spoilt)
    with pytest.raises(TrainingError, match="diverged"):
        next(steps)
    assert trainer.progress.batches == 1
    assert all(
        torch.equal(value, before[name]) for name, value in trainer.network.parameters.items()
    )
    assert torch.equal(trainer.rows.weight, softmax)


@pytest.mark.slow
def test_loss_goes_down_with_products_in_bfloat16(
    small_options: BiLMOptions, recipe: Recipe, corpus: Corpus
) -> None:
    losses = trained(Trainer.fresh(small_options, recipe, corpus), 60)
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:3])


def resume(
    path: Path, recipe: Recipe, corpus: Corpus, options: BiLMOptions, **given: Any
) -> Trainer:
    return run.resume(path, recipe, given, corpus, options, "cpu")


def test_a_resumed_run_is_the_run_that_never_stopped(
    small_options: BiLMOptions, recipe: Recipe, corpus: Corpus, folder: Path
) -> None:
    ours = replace(recipe, max_tokens=2000)
    # The stop falls into the second epoch, whose order of sentences the resumed run has to make again.
    corpus = replace(corpus, types=corpus.types[: corpus.starts[60]], starts=corpus.starts[:61])
    straight = Trainer.fresh(small_options, ours, corpus)
    trained(straight, 25)
    first = Trainer.fresh(small_options, ours, corpus)
    trained(first, 13)
    assert first.progress.epoch == 1
    folder.mkdir()
    run.save_checkpoint(first, folder / "checkpoint.pt")
    second = resume(folder / "checkpoint.pt", ours, corpus, small_options)
    trained(second, 12)
    assert second.progress.tokens == straight.progress.tokens
    for name, value in straight.network.parameters.items():
        assert torch.equal(second.network.parameters[name], value), name
    for name in ("weight", "bias", "seen"):
        assert torch.equal(getattr(second.rows, name), getattr(straight.rows, name)), name


def test_a_run_resumes_at_the_end_of_an_epoch(
    small_options: BiLMOptions, recipe: Recipe, corpus: Corpus
) -> None:
    trainer = Trainer.fresh(small_options, recipe, corpus)
    trainer.progress.batch = Epoch(corpus, 0, recipe.lanes, recipe.unroll, recipe.seed).n_batches
    trained(trainer, 2)
    assert (trainer.progress.epoch, trainer.progress.batch) == (1, 2)


def test_a_checkpoint_of_another_run_is_refused(
    done: Trainer, small_options: BiLMOptions, recipe: Recipe, corpus: Corpus, folder: Path
) -> None:
    folder.mkdir()
    path = folder / "checkpoint.pt"
    with pytest.raises(TrainingError, match="no run to resume"):
        resume(path, recipe, corpus, small_options)
    run.save_checkpoint(done, path)
    with pytest.raises(TrainingError, match="lanes: 8 there, 9 asked for"):
        resume(path, replace(recipe, lanes=9), corpus, small_options)
    with pytest.raises(TrainingError, match="other options"):
        resume(path, recipe, corpus, replace(small_options, dim=25))
    # As many types, classes and sentences as that text has, in another order: only the digest tells.
    reordered = Corpus(
        *shuffle_sentences(corpus.types, corpus.starts, 1, 0), corpus.vocabulary, corpus.n_classes
    )
    with pytest.raises(TrainingError, match="resume with the same files"):
        resume(path, recipe, reordered, small_options)
    with pytest.raises(TrainingError, match="digest"):
        resume(path, recipe, Corpus.encode([["other", "words"]] * 50, 10), small_options)
    for damaged in (path.read_bytes()[:1000], b"XXXX" + path.read_bytes()[4:]):
        path.write_bytes(damaged)
        with pytest.raises(TrainingError, match="damaged"):
            resume(path, recipe, corpus, small_options)
    torch.save([1], path)
    with pytest.raises(TrainingError, match="it holds a list"):
        resume(path, recipe, corpus, small_options)


def test_a_model_with_dictionaries_of_its_own_is_not_trained(
    small_options: BiLMOptions, recipe: Recipe, corpus: Corpus
) -> None:
    with pytest.raises(TrainingError, match="alphabet is 'characters'"):
        Trainer.fresh(replace(small_options, alphabet="characters"), recipe, corpus)


def test_exported_weights_give_inference_the_states_of_training(
    done: Trainer, sentences: list[list[str]], tmp_path: Path
) -> None:
    done.network.weights().save_hdf5(tmp_path)
    weights = BiLMWeights.load(str(tmp_path))
    text = sentences[:3]
    embedder = Embedder(weights, StartState.zero(weights.options), EngineSettings())
    engine = embed_carried(embedder, [text])[0]
    plain = plain_lane(weights, text, carry=True)
    for k, direction in enumerate(DIRECTIONS):
        read = [["<S>", *sentence, "</S>"][:: 1 if direction == "fwd" else -1] for sentence in text]
        row = [token for sentence in read for token in sentence]
        ids = torch.from_numpy(char_ids(row).astype(np.int64))
        with torch.no_grad():
            x = done.network.word_vectors(ids)[:, None]  # [T, 1, p]
            h, _ = done.network.direction(direction, x, done.network.zero_state(1))  # [T, 1, p]
        parts = [
            part.flip(0) if k else part
            for part in h[:, 0].split([len(sentence) for sentence in read])
        ]
        for ours, reference, computed in zip(parts, plain, engine, strict=True):
            torch.testing.assert_close(ours, reference[:, 3 + k], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(
                ours[1:-1], torch.from_numpy(computed)[:, 3 + k].float(), rtol=1e-4, atol=1e-4
            )


def test_perplexity_is_that_of_the_exported_model_read_plainly(
    done: Trainer, sentences: list[list[str]]
) -> None:
    text = [*sentences[:3], ["the", "dragon", "sings", "."]]
    found = evaluate(done.network, done.softmax_weights(), text)
    states = plain_lane(done.network.weights(), text, carry=True)
    number = {word: i for i, word in enumerate(done.corpus.vocabulary)}
    loss = [0.0, 0.0]
    for sentence, state in zip(text, states, strict=True):
        classes = torch.tensor([1, *(number.get(word, 2) for word in sentence), 0])
        for k, (outputs, targets) in enumerate(
            ((state[:-1, 3], classes[1:]), (state[1:, 4], classes[:-1]))
        ):
            logits = outputs @ done.rows.weight.t() + done.rows.bias
            loss[k] += float(F.cross_entropy(logits, targets, reduction="sum"))
    assert found.predictions == sum(len(sentence) + 1 for sentence in text)
    assert found.unknown == pytest.approx(1 / found.predictions)
    assert np.log(found.perplexity) * found.predictions == pytest.approx(loss, rel=1e-3)


@pytest.mark.parametrize("k", [0, 1])
def test_no_direction_sees_what_it_predicts(k: int, done: Trainer, corpus: Corpus) -> None:
    """One word of a text is changed: of the outputs that predict it and come before it, none may change, later ones must."""
    order, starts = shuffle_sentences(
        np.arange(len(corpus.types), dtype=np.int32), corpus.starts, 1, 0
    )
    place = int(order[starts[4] + 2])  # in the fifth sentence that the epoch reads

    def outputs(types: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
        batch = Epoch(replace(corpus, types=types), 0, 1, 60, 1).batch(0)
        ids = torch.from_numpy(
            char_ids([corpus.vocabulary[i] for i in batch.words]).astype(np.int64)
        )
        with torch.no_grad():
            x = F.embedding(torch.from_numpy(batch.inputs[k]), done.network.word_vectors(ids))
            return done.network.direction(DIRECTIONS[k], x, done.network.zero_state(1))[0][
                :, 0
            ], batch.targets[k][:, 0]

    changed = corpus.types.copy()
    changed[place] = next(other for other in range(3, 9) if other != changed[place])
    (before, targets), (after, other_targets) = outputs(corpus.types), outputs(changed)
    predicted = int(np.nonzero(targets != other_targets)[0][0])
    assert (targets != other_targets).sum() == 1
    torch.testing.assert_close(before[: predicted + 1], after[: predicted + 1], rtol=0, atol=0)
    assert not torch.allclose(before[predicted + 1], after[predicted + 1])


@pytest.mark.slow
def test_a_run_ends_where_it_was_told_to_and_leaves_checkpoint_and_curve(
    small_options: BiLMOptions, recipe: Recipe, corpus: Corpus, folder: Path
) -> None:
    ours = replace(recipe, max_tokens=1500)
    trainer = Trainer.fresh(small_options, ours, corpus)
    lines: list[str] = []
    assert run.run(trainer, folder, lines.append, report_seconds=0.0)
    assert 1500 <= trainer.progress.tokens < 1500 + recipe.lanes * recipe.unroll
    assert trainer.recipe.rate_factor(trainer.progress.tokens) == 0.0
    assert "| sampled loss " in lines[-1]
    assert "tokens/s" in lines[-1]
    assert "h left" in lines[-1]
    curve = (folder / run.CURVE).read_text().splitlines()
    assert len(curve) == 1 + len(lines)
    again = resume(folder / run.CHECKPOINT, ours, corpus, small_options)
    assert again.progress.tokens == trainer.progress.tokens
    assert run.run(again, folder)
    assert math.isfinite(again.progress.seconds)
    path = folder / run.CURVE
    path.write_text(
        path.read_text() + f"{10**9}\t0\t0\t0\t0\n"
    )  # as of a run that died after its last checkpoint
    run.run(resume(folder / run.CHECKPOINT, ours, corpus, small_options), folder)
    assert str(10**9) not in path.read_text()
    run.run(
        Trainer.fresh(small_options, replace(ours, max_tokens=1), corpus),
        folder,
        report_seconds=0.0,
    )
    assert len(path.read_text().splitlines()) == 2


def test_what_may_change_does_change(
    done: Trainer, small_options: BiLMOptions, recipe: Recipe, corpus: Corpus, folder: Path
) -> None:
    folder.mkdir()
    run.save_checkpoint(done, folder / "checkpoint.pt")
    again = resume(
        folder / "checkpoint.pt",
        replace(recipe, rate=0.5, sampled=7, max_tokens=9),
        corpus,
        small_options,
    )
    assert again.recipe == recipe  # what nobody asks to change does not
    assert again.network.dtype == done.network.dtype
    again = resume(
        folder / "checkpoint.pt",
        recipe,
        corpus,
        small_options,
        rate=5e-3,
        sampled=4,
        max_tokens=10**6,
    )
    trained(again, 1)
    assert again.optimiser.param_groups[0]["lr"] == 5e-3
    assert (
        len(
            again.prepare(
                Epoch(corpus, 0, recipe.lanes, recipe.unroll, 1).batch(0), 0
            ).negatives.classes
        )
        == 4
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_trains_as_a_cpu_does(
    small_options: BiLMOptions, recipe: Recipe, corpus: Corpus, tmp_path: Path
) -> None:
    losses = [
        trained(Trainer.fresh(small_options, recipe, corpus, device, torch.float32), 10)
        for device in ("cpu", "cuda")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    mixed = Trainer.fresh(small_options, recipe, corpus, "cuda", torch.bfloat16)
    assert np.mean(trained(mixed, 60)[-10:]) < 0.8 * losses[0][0]
    run.save_checkpoint(mixed, tmp_path / "checkpoint.pt")
    again = run.resume(tmp_path / "checkpoint.pt", recipe, {}, corpus, small_options, "cuda")
    assert again.progress == mixed.progress


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_gives_the_same_bytes_each_time_and_over_a_stop(
    small_options: BiLMOptions, recipe: Recipe, sentences: list[list[str]], tmp_path: Path
) -> None:
    # A word of 90 letters now and then: graphs of all windows, beside those of short words.
    text = Corpus.encode(
        [
            [*sentence, "w" * 90] if i % 50 == 7 else sentence
            for i, sentence in enumerate(sentences)
        ],
        1000,
    )
    runs = [Trainer.fresh(small_options, recipe, text, "cuda") for _ in range(2)]
    trained(runs[0], 40)
    trained(runs[1], 20)
    run.save_checkpoint(runs[1], tmp_path / "checkpoint.pt")
    runs.append(run.resume(tmp_path / "checkpoint.pt", recipe, {}, text, small_options, "cuda"))
    for other in runs[1:]:
        trained(other, 20)
        for name, value in runs[0].network.parameters.items():
            assert torch.equal(other.network.parameters[name], value), name
        assert torch.equal(other.rows.weight, runs[0].rows.weight)
