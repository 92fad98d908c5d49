"""`elmo-store probe`: labels that fit their store, scores that can be known beforehand, and the command to its files."""

import json
import lzma
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import elmo_store
from elmo_store.mix_weights import read_weight_sets
from elmo_store.torch import layers_of_states
from pipeline.cli import main
from pipeline.probing import labels as label_files
from pipeline.probing import results, scores, senses, tagger, vectors

FAST = ("--learning-rate", "0.1", "--epochs", "12", "--dropout", "0", "--layer-norm", "token")
WORDS = {"the": "DET", "a": "DET", "cat": "NOUN", "dogs": "NOUN", "ran": "VERB", "sat": "VERB", ",": "PUNCT"}


def made_up(n: int, seed: int) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [list(rng.choice(list(WORDS), size=int(rng.integers(1, 9)))) for _ in range(n)]


def write_conllu(path: Path, sentences: list[list[str]]) -> Path:
    lines = []
    for i, words in enumerate(sentences):
        lines += [f"# sent_id = s{i}", "1-2\tthecat" + "\t_" * 8]
        lines += [f"{j}\t{word}\t_\t{WORDS[word]}\tX" + "\t_" * 5 for j, word in enumerate(words, 1)]
        lines += [f"{len(words)}.1\tempty" + "\t_" * 8, ""]
    text = "\n".join(line for line in lines if len(lines) > 3 or line) + "\n"
    path.write_bytes(lzma.compress(text.encode()) if path.suffix == ".xz" else text.encode())
    return path


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Stores `train` and `test` of made-up sentences whose labels follow from the word, and `line` of word senses."""
    folder = tmp_path_factory.mktemp("probe")
    for name, n in (("train", 60), ("test", 20)):
        source = write_conllu(folder / f"{name}.conllu.xz", made_up(n, n))
        assert main(["embed", str(source), "--output", str(folder / name), "--model", str(tiny_model), "--quiet"]) == 0
    rows = [f"i{i}\t{'cord' if i % 3 else 'phone,text'}\t1\tthe {'cord' if i % 3 else 'call'} ran {i}" for i in range(30)]
    (folder / "line.tsv").write_text("# id\tsense\thead\ttokens\n" + "\n".join(rows) + "\n")
    (folder / "line.lines").write_text("\n".join(row.split("\t")[3] for row in rows) + "\n")
    arguments = ["embed", str(folder / "line.lines"), "--output", str(folder / "line"), "--model", str(tiny_model), "--quiet"]
    assert main([*arguments, "--boundaries"]) == 0
    return folder


def tag(sets: Path, *options: str) -> int:
    files = [
        f"--{side}{kind}={sets / side}{ending}"
        for side in ("train", "test")
        for kind, ending in (("", ""), ("-labels", ".conllu.xz"))
    ]
    return main(["probe", "tag", *files, "--seeds", "1", "--epochs", "1", "--threads", "1", "--batch", "8", *options])


class TestLabels:
    def test_conllu_passes_over_ranges_and_empty_nodes(self, tmp_path: Path) -> None:
        path = write_conllu(tmp_path / "a.conllu", [["the", "cat"], ["ran"]])
        found = label_files.read_token_labels(str(path), "upos")
        assert [s.words for s in found] == [("the", "cat"), ("ran",)]
        assert [s.labels for s in found] == [("DET", "NOUN"), ("VERB",)]
        assert found[1].where == f"{path}, line 9"

    @pytest.mark.parametrize("space", ["\t", " "])
    def test_columns(self, tmp_path: Path, space: str) -> None:
        path = tmp_path / "a.tsv"
        path.write_text(f"#{space}X{space}B-NP\r\nb{space}Y{space}I-NP\r\n\r\n\r\nc{space}Z{space}O")
        found = label_files.read_token_labels(str(path), "3")
        assert [(s.words, s.labels) for s in found] == [(("#", "b"), ("B-NP", "I-NP")), (("c",), ("O",))]

    @pytest.mark.parametrize(
        ("text", "column", "message"),
        [
            ("a\tX\n", "3", "line 1: 2 columns, column 3 was asked for"),
            ("a\tX\n", "upos", "no column 'upos': give its number"),
            ("a\tX\n", "0", "no column '0'"),
            ("\n\n", "2", "no labelled sentence"),
        ],
    )
    def test_errors_name_the_line(self, tmp_path: Path, text: str, column: str, message: str) -> None:
        (tmp_path / "a.tsv").write_text(text)
        with pytest.raises(label_files.LabelError, match=message):
            label_files.read_token_labels(str(tmp_path / "a.tsv"), column)

    def test_not_utf8_not_conllu(self, tmp_path: Path) -> None:
        (tmp_path / "a.tsv").write_bytes(b"a\tX\n\xff\xfe\tY\n")
        with pytest.raises(label_files.LabelError, match="not UTF-8"):
            label_files.read_token_labels(str(tmp_path / "a.tsv"), "2")
        (tmp_path / "a.conllu").write_text("word\tX\n")
        with pytest.raises(label_files.LabelError, match="line 1: the id 'word' is no number"):
            label_files.read_token_labels(str(tmp_path / "a.conllu"), "4")

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("i\tsense\t0", "3 columns between tabs"),
            ("i\tsense\t2\ta b", "index '2' of the target in 2 tokens"),
            ("i\t,\t1\ta b", "the sense is empty"),
        ],
    )
    def test_senses_errors(self, tmp_path: Path, line: str, message: str) -> None:
        (tmp_path / "a.tsv").write_text(line + "\n")
        with pytest.raises(label_files.LabelError, match=f"line 1: .*{message}"):
            label_files.read_senses(str(tmp_path / "a.tsv"))


class TestScores:
    def test_spans_as_conlls_scorer_has_them(self) -> None:
        labels = ["B-NP", "I-NP", "B-NP", "I-VP", "O", "I-NP", "I-NP"]
        assert scores.spans(labels) == {(0, 2, "NP"), (2, 3, "NP"), (3, 4, "VP"), (5, 7, "NP")}

    def test_f1_by_hand(self) -> None:
        gold = [["B-NP", "I-NP", "O", "B-VP"]]
        assert scores.span_f1(gold, gold) == 1.0
        assert scores.span_f1(gold, [["B-NP", "O", "O", "B-VP"]]) == pytest.approx(0.5)
        assert scores.span_f1(gold, [["B-NP", "I-NP", "B-VP", "I-VP"]]) == pytest.approx(0.5)
        assert scores.span_f1(gold, [["O"] * 4]) == 0.0

    def test_accuracy_and_kind(self) -> None:
        assert scores.accuracy([["A", "B"], ["C"]], [["A", "C"], ["C"]]) == pytest.approx(2 / 3)
        assert scores.is_iob2(["O", "B-NP", "I-NP"])
        assert not scores.is_iob2(["O", "NOUN"])
        assert not scores.is_iob2(["O"])


class TestVectors:
    def test_boundaries_are_left_out(self, sets: Path) -> None:
        store = elmo_store.open(str(sets / "line"))
        found = vectors.load_states(store)
        assert found.lengths().tolist() == [4] * 30
        np.testing.assert_array_equal(found.states[4:8], store.sentence(1).read()[1:-1])

    def test_counts_that_differ_name_the_sentence(self, sets: Path) -> None:
        found = vectors.load_states(elmo_store.open(str(sets / "test")))
        lengths = found.lengths().tolist()
        wheres = [f"file, line {i}" for i in range(len(lengths) + 1)]
        vectors.check_alignment(found, lengths, wheres)
        with pytest.raises(label_files.LabelError, match=r"sentence 3 \(s3\) of .* its labels at file, line 3 are"):
            vectors.check_alignment(found, [*lengths[:3], lengths[3] + 1, *lengths[4:]], wheres)
        with pytest.raises(label_files.LabelError, match=r"sentence 19 \(s19\) has no counterpart"):
            vectors.check_alignment(found, lengths[:-1], wheres)
        with pytest.raises(label_files.LabelError, match="file, line 20 has no counterpart"):
            vectors.check_alignment(found, [*lengths, 2], wheres)

    def test_a_store_of_mixes_has_no_layers(self, sets: Path, tmp_path: Path) -> None:
        (tmp_path / "mix.json").write_text('{"w": [0, 0, 0], "gamma": 1}')
        arguments = ["mix", str(sets / "test"), "--weights", str(tmp_path / "mix.json"), "--output", str(tmp_path / "mix")]
        assert main([*arguments, "--quiet"]) == 0
        with pytest.raises(label_files.LabelError, match="store of mixes: probe the store it came from"):
            vectors.load_states(elmo_store.open(str(tmp_path / "mix")))


class TestTagger:
    def test_features_choose_their_layers(self) -> None:
        states = torch.randn(6, 5, 4)
        layers = layers_of_states(states)
        settings = tagger.TaggerSettings(dropout=0.0)
        made = {name: tagger.TaggerModel(3, 8, 2, logits, settings) for name, logits in tagger.feature_logits(3).items()}
        assert list(made) == ["x", "layer 1", "layer 2 (top)", "average", "mix"]
        for name, expected in (
            ("x", layers[:, 0]),
            ("layer 1", layers[:, 1]),
            ("layer 2 (top)", layers[:, 2]),
            ("average", layers.mean(1)),
        ):
            torch.testing.assert_close(made[name].mix(layers), expected)
            assert not any(w.requires_grad for w in made[name].mix.parameters())
        assert made["mix"].penalty().requires_grad

    def test_bilstm_sees_each_sentence_alone(self) -> None:
        torch.manual_seed(0)
        model = tagger.TaggerModel(3, 8, 2, None, tagger.TaggerSettings(tagger="bilstm", hidden=3)).eval()
        states = torch.randn(7, 5, 4)
        together = model(states, [2, 5])
        torch.testing.assert_close(together, torch.cat([model(states[:2], [2]), model(states[2:], [5])]))

    def test_the_mix_finds_the_layer_that_knows(self) -> None:
        """Only layer 2 tells the labels apart, so s goes there and the other layers score by chance."""
        rng = np.random.default_rng(0)
        names = ("A", "B")

        def side(n: int) -> tuple[vectors.TokenStates, list[label_files.LabelledSentence]]:
            states = rng.normal(size=(n * 5, 5, 4)).astype(np.float32)
            kinds = rng.integers(0, 2, n * 5)
            states[:, 3, 0] = 3.0 * (2 * kinds - 1)
            found = vectors.TokenStates(states, np.arange(0, n * 5 + 1, 5), ("",) * n, "made up", 0)
            return found, [
                label_files.LabelledSentence(("w",) * 5, tuple(names[k] for k in kinds[i * 5 : i * 5 + 5]), "") for i in range(n)
            ]

        settings = tagger.TaggerSettings(epochs=10, batch=8, learning_rate=0.05)
        train, test = side(60), side(40)
        runs = tagger.probe_tagging(train, test, metric="accuracy", seeds=[0], settings=settings)
        found = {run.feature: run for run in runs}
        assert found["layer 2 (top)"].score > 0.99
        assert found["mix"].score > 0.99
        assert found["x"].score < 0.7
        shares = found["mix"].s
        assert shares is not None
        assert max(shares) == shares[2] > 0.6
        again = tagger.probe_tagging(train, test, metric="accuracy", seeds=[0], settings=settings, features=["mix"])
        assert (again[0].score, again[0].s, again[0].gamma) == (found["mix"].score, shares, found["mix"].gamma)


class TestSenses:
    def instances(self, kinds: list[str]) -> list[label_files.SenseInstance]:
        return [label_files.SenseInstance(str(i), ("w",), 0, frozenset(kind.split(",")), "") for i, kind in enumerate(kinds)]

    def test_separable_and_constant_vectors(self) -> None:
        """Vectors that hold the sense are always right; vectors that are all equal give the most frequent sense."""
        kinds = ["a"] * 10 + ["b"] * 20 + ["b,c"] * 10
        apart = np.asarray([[1, 0, 0] if k == "a" else [0, 1, 0] for k in kinds], np.float32)
        same = np.ones((40, 3), np.float32)
        runs = senses.probe_senses({"apart": apart, "same": same}, self.instances(kinds), seeds=[0, 1])
        by = {(run.feature, run.seed): run for run in runs}
        for seed in (0, 1):
            assert by["apart", seed].nearest == by["apart", seed].averaged == 1.0
            assert by["same", seed].nearest == by["same", seed].averaged == by[senses.MOST_FREQUENT, seed].nearest == 0.75

    def test_against_a_loop(self) -> None:
        rng = np.random.default_rng(3)
        kinds = [str(k) for k in rng.integers(0, 3, 24)]
        data = rng.normal(size=(24, 5)).astype(np.float32)
        run = next(r for r in senses.probe_senses({"v": data}, self.instances(kinds), seeds=[7], n_folds=4) if r.feature == "v")
        order = np.random.default_rng(7).permutation(24)
        right = 0
        for fold in range(4):
            test = order[fold::4]
            for i in test:
                others = [j for j in range(24) if j not in test]
                cosines = [data[i] @ data[j] / np.linalg.norm(data[i]) / np.linalg.norm(data[j]) for j in others]
                right += kinds[others[int(np.argmax(cosines))]] == kinds[i]
        assert run.nearest == right / 24

    def test_more_folds_than_instances(self) -> None:
        with pytest.raises(label_files.LabelError, match="3 instances in 10 folds"):
            senses.probe_senses({"v": np.ones((3, 2), np.float32)}, self.instances(["a", "b", "a"]), seeds=[0])


class TestResults:
    def test_table_bars_and_sets(self) -> None:
        runs = [tagger.TaggingRun("x", seed, 0.5 + seed / 10, 1.0) for seed in (0, 1)]
        runs += [tagger.TaggingRun("mix", seed, 0.9, 1.0, (0.0, 1.0), (0.25, 0.75), 2.0) for seed in (0, 1)]
        found = results.tagging_result("POS", "accuracy", runs)
        table = results.markdown([found])
        assert table.splitlines()[0] == "| feature | POS, accuracy |"
        assert "| x | 55.00 ± 7.07 |" in table
        assert "| mix | 90.00 ± 0.00 |" in table
        bar = {line.split("  ")[1]: line.count("█") for line in results.bars(found).splitlines()[1:]}
        assert bar == {"s x": 8, "s layer 1": 22, "γ": 30} or bar == {"s x      ": 8, "s layer 1": 22, "γ        ": 30}
        assert results.weight_sets(found)["seed1"] == {"w": [0.0, 1.0], "gamma": 2.0}

    def test_nothing_learned_nothing_to_plot(self, tmp_path: Path) -> None:
        found = results.tagging_result("POS", "accuracy", [tagger.TaggingRun("x", 0, 0.5, 1.0)])
        assert results.bars(found) == ""
        with pytest.raises(ValueError, match="no learned mix to plot"):
            results.plot([found], str(tmp_path / "a.svg"))


class TestCommand:
    def test_tag(self, sets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        outputs = {name: str(tmp_path / name) for name in ("a.json", "mix.json")}
        code = tag(sets, "--name", "UPOS", "--json", outputs["a.json"], "--mix-weights", outputs["mix.json"], *FAST)
        printed = capsys.readouterr()
        assert code == 0
        assert [line.split("|")[1].strip() for line in printed.out.splitlines() if line.startswith("| ")] == [
            "feature", "x", "layer 1", "layer 2 (top)", "average", "mix",
        ]  # fmt: skip
        assert "UPOS: learned mix" in printed.out
        assert printed.err.count("seed 0") == 5
        found = json.loads((tmp_path / "a.json").read_text())[0]
        assert found["scores"]["x"]["accuracy"]["mean"] > 0.9  # the label follows from the word
        assert sum(s["mean"] for s in found["mix"]["s"]) == pytest.approx(1)
        (learned,) = read_weight_sets(outputs["mix.json"])
        assert learned.gamma == pytest.approx(found["mix"]["gamma"]["mean"])
        assert sum(learned.s) == pytest.approx(1)

    def test_tag_plot(self, sets: Path, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
        options = ("--features", "top,mix", "--tagger", "bilstm", "--hidden", "4", "--layer-norm", "batch", "--quiet")
        assert tag(sets, *options, "--plot", str(tmp_path / "mix.svg")) == 0
        assert "<svg" in (tmp_path / "mix.svg").read_text(encoding="utf-8")

    def test_sense(self, sets: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["probe", "sense", "--store", str(sets / "line"), "--labels", str(sets / "line.tsv"), "--seeds", "2"]) == 0
        table = capsys.readouterr().out
        assert "| feature | sense, nearest occurrence | sense, nearest sense mean |" in table
        assert "| most frequent sense | 66.67 ± 0.00 |" in table
        assert "| x | 100.00 ± 0.00 | 100.00 ± 0.00 |" in table  # each sense has a word of its own

    @pytest.mark.parametrize(
        ("options", "code", "message"),
        [
            (("--seeds", "0"), 2, "--seeds 0: give 1 or more"),
            (("--dropout", "1"), 2, "no probability below 1"),
            (("--l2", "-1"), 2, "at least 0"),
            (("--features", "layer 9"), 2, "no feature 'layer 9'; this model has x, layer 1, layer 2 (top), average, mix"),
            (("--column", "17"), 3, "column 17 was asked for"),
            (("--test-labels", "nowhere.conllu"), 3, "nowhere.conllu"),
            (("--test", "nowhere"), 3, "no store at"),
        ],
    )
    def test_errors(
        self, sets: Path, options: tuple[str, ...], code: int, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert tag(sets, *options) == code
        assert message in capsys.readouterr().err

    def test_labels_of_another_set(self, sets: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert tag(sets, "--test-labels", str(sets / "train.conllu.xz")) == 3
        assert "labels and store must come from the same sentences" in capsys.readouterr().err
