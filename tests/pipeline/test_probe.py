"""`elmo-store probe`: labels that fit their store, scores that can be known beforehand, and the command to its files."""

import json
import lzma
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import elmo_store
from elmo_store.mixing.weights import read_weight_sets
from elmo_store.torch import layers_of_states
from pipeline.cli.label_files import LabelError
from pipeline.main import main
from pipeline.probing import data, results, senses, tagger, tagging

FAST = ("--learning-rate", "0.1", "--epochs", "12", "--dropout", "0", "--layer-norm", "token")
WORDS = {"the": "DET", "a": "DET", "cat": "NOUN", "dogs": "NOUN", "ran": "VERB", "sat": "VERB", ",": "PUNCT"}

pytestmark = pytest.mark.usefixtures("one_thread")


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


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Stores `train` and `test` of made-up sentences whose labels follow from the word, and `line` of word senses."""
    folder = tmp_path_factory.mktemp("probe")
    for name, n in (("train", 60), ("test", 20)):
        source = write_conllu(folder / f"{name}.conllu.xz", made_up(n, n))
        options = ["--model", str(tiny_model), "--keep-fields", "upos,xpos", "--quiet"]
        assert main(["embed", str(source), "--output", str(folder / name), *options]) == 0
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
        found = data.read_token_labels(str(path), "upos")
        assert [s.words for s in found] == [("the", "cat"), ("ran",)]
        assert [s.labels for s in found] == [("DET", "NOUN"), ("VERB",)]
        assert found[1].where == f"{path}, line 9"

    @pytest.mark.parametrize("space", ["\t", " "])
    def test_columns(self, tmp_path: Path, space: str) -> None:
        path = tmp_path / "a.tsv"
        path.write_text(f"\ufeff#{space}X{space}B-NP\r\nb{space}Y{space}I-NP\r\n\r\n\r\nc{space}Z{space}O")
        found = data.read_token_labels(str(path), "3")
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
        with pytest.raises(LabelError, match=message):
            data.read_token_labels(str(tmp_path / "a.tsv"), column)

    def test_not_utf8_not_conllu(self, tmp_path: Path) -> None:
        (tmp_path / "a.tsv").write_bytes(b"a\tX\n\xff\xfe\tY\n")
        with pytest.raises(LabelError, match="not UTF-8"):
            data.read_token_labels(str(tmp_path / "a.tsv"), "2")
        (tmp_path / "a.conllu").write_text("word\tX\n")
        with pytest.raises(LabelError, match="line 1: the id 'word' is no number"):
            data.read_token_labels(str(tmp_path / "a.conllu"), "4")

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
        with pytest.raises(LabelError, match=f"line 1: .*{message}"):
            data.read_senses(str(tmp_path / "a.tsv"))


class TestScores:
    def test_spans_as_conlls_scorer_has_them(self) -> None:
        labels = ["B-NP", "I-NP", "B-NP", "I-VP", "O", "I-NP", "I-NP"]
        assert results.spans(labels) == {(0, 2, "NP"), (2, 3, "NP"), (3, 4, "VP"), (5, 7, "NP")}

    def test_f1_by_hand(self) -> None:
        gold = [["B-NP", "I-NP", "O", "B-VP"]]

        def f1(predicted: list[str]) -> float:
            return results.counts("span-f1", gold, [predicted]).score

        assert f1(gold[0]) == 1.0
        assert f1(["B-NP", "O", "O", "B-VP"]) == pytest.approx(0.5)
        assert f1(["B-NP", "I-NP", "B-VP", "I-VP"]) == pytest.approx(0.5)
        assert f1(["O"] * 4) == 0.0

    def test_accuracy_and_kind(self) -> None:
        assert results.counts("accuracy", [["A", "B"], ["C"]], [["A", "C"], ["C"]]).score == pytest.approx(2 / 3)
        assert results.is_iob2(["O", "B-NP", "I-NP"])
        assert not results.is_iob2(["O", "NOUN"])
        assert not results.is_iob2(["O"])

    def test_the_bootstrap_tells_a_real_difference_from_noise(self) -> None:
        rng = np.random.default_rng(1)

        def made(right: np.ndarray) -> results.Counts:
            return results.Counts(right, np.full(400, 10), np.full(400, 10))

        base = rng.integers(3, 8, 400)
        better, same = base + rng.integers(0, 2, 400), rng.permutation(base)
        ahead = results.paired_bootstrap(made(better), made(base))
        assert ahead.verdict == "ahead"
        assert ahead.mean == pytest.approx((better - base).sum() / 4000)
        assert 0 < ahead.low < ahead.mean < ahead.high
        behind = results.paired_bootstrap(made(base), made(better))
        assert behind.verdict == "behind"
        assert behind.low == pytest.approx(-ahead.high)
        noise = results.paired_bootstrap(made(same), made(base))
        assert noise.verdict == "within noise"
        assert noise.mean == 0.0
        # The interval is that of the mean of differences that are independent: 1.96 standard errors each way.
        error = np.std(better - base) / 10 / np.sqrt(400)
        assert ahead.high - ahead.low == pytest.approx(2 * 1.96 * error, rel=0.1)


class TestBaselines:
    def sentence(self, text: str) -> data.LabelledSentence:
        words, labels = zip(*(token.split("/") for token in text.split()), strict=True)
        return data.LabelledSentence(words, labels, "")

    def test_most_frequent(self) -> None:
        train = [self.sentence("the/D can/N can/V rust/V"), self.sentence("a/D can/N ./P ,/P")]
        test = [self.sentence("the/D can/V"), self.sentence("unseen/N ./P")]
        words = [[s.words for s in side] for side in (train, test)]
        assert tagging.most_frequent(train, *words) == [["D", "N"], ["D", "P"]]  # D, N, P, V: D is the first of equals
        tags = [[["x"] * len(s.words) for s in side] for side in (train, test)]
        assert tagging.most_frequent(train, *tags) == [["D", "D"], ["D", "D"]]

    def test_control_labels_follow_from_the_word_and_keep_the_shares(self) -> None:
        words = [f"w{i}" for i in range(4000)]
        vectors = data.TokenStates(np.zeros((0, 5, 4)), np.zeros(1, np.int64), (), "", 0)
        train = data.Labelled(vectors, [data.LabelledSentence(tuple(words), ("A",) * 3000 + ("B",) * 1000, "")])
        test = data.Labelled(vectors, [data.LabelledSentence(("w1", "new", "w1"), ("A", "B", "A"), "")])

        def drawn(seed: int) -> list[data.LabelledSentence]:
            return [sentence for side in tagging.control_labels(train, test, seed) for sentence in side.sentences]

        random_train, random_test = drawn(0)
        assert random_train.words == train.sentences[0].words
        assert 0.7 < random_train.labels.count("A") / 4000 < 0.8
        assert random_test.labels[0] == random_test.labels[2] == random_train.labels[1]
        assert drawn(0)[0] == random_train
        assert drawn(1)[0] != random_train
        agreement = np.mean([a == b for a, b in zip(random_train.labels, train.sentences[0].labels, strict=True)])
        assert 0.55 < agreement < 0.7  # chance is 0.75² + 0.25² = 0.625: the true label is not looked at


class TestVectors:
    def test_boundaries_are_left_out(self, sets: Path) -> None:
        store = elmo_store.open(str(sets / "line"))
        found = data.load_states(store)
        assert found.lengths().tolist() == [4] * 30
        np.testing.assert_array_equal(found.states[4:8], store.sentence(1).read()[1:-1])

    def test_counts_that_differ_name_the_sentence(self, sets: Path) -> None:
        found = data.load_states(elmo_store.open(str(sets / "test")))
        lengths = found.lengths().tolist()
        wheres = [f"file, line {i}" for i in range(len(lengths) + 1)]
        data.check_alignment(found, lengths, wheres)
        with pytest.raises(LabelError, match=r"sentence 3 \(s3\) of .* its labels at file, line 3 are"):
            data.check_alignment(found, [*lengths[:3], lengths[3] + 1, *lengths[4:]], wheres)
        with pytest.raises(LabelError, match=r"sentence 19 \(s19\) has no counterpart"):
            data.check_alignment(found, lengths[:-1], wheres)
        with pytest.raises(LabelError, match="file, line 20 has no counterpart"):
            data.check_alignment(found, [*lengths, 2], wheres)

    def test_a_store_of_mixes_has_no_layers(self, sets: Path, tmp_path: Path) -> None:
        (tmp_path / "mix.json").write_text('{"w": [0, 0, 0], "gamma": 1}')
        arguments = ["mix", str(sets / "test"), "--weights", str(tmp_path / "mix.json"), "--output", str(tmp_path / "mix")]
        assert main([*arguments, "--quiet"]) == 0
        with pytest.raises(LabelError, match="store of mixes: probe the store it came from"):
            data.load_states(elmo_store.open(str(tmp_path / "mix")))


class TestTagger:
    def test_features_choose_their_layers(self) -> None:
        states = torch.randn(6, 5, 4)
        layers = layers_of_states(states)
        settings = tagger.TaggerSettings(dropout=0.0)
        known = tagger.features(3)
        assert [feature.name for feature in tagger.chosen_features(None, 3)] == [
            "x",
            "layer 1",
            "layer 2 (top)",
            "average",
            "mix",
        ]
        made = {name: tagger.TaggerModel(3, 4, 2, feature, settings) for name, feature in known.items()}
        for name, expected in (
            ("x", layers[:, 0]),
            ("layer 1", layers[:, 1]),
            ("layer 2 (top)", layers[:, 2]),
            ("average", layers.mean(1)),
        ):
            torch.testing.assert_close(made[name].mix(layers=layers), expected)
            # γ is learned for every feature, w only for the mix: features differ in what they mix, not in a free scale.
            assert [n for n, w in made[name].mix.named_parameters() if w.requires_grad] == ["gamma"]
            assert not made[name].penalty().requires_grad
        assert made["mix"].penalty().requires_grad
        for name in ("projection", "[x; mix]", "h", "[h; mix]"):
            model = made[name]
            model(states, [2, 4]).sum().backward()
            assert all(w.grad is not None for w in model.parameters()), name
            assert model(states, [2, 4]).shape == (6, 2)
        assert made["[x; mix]"].out.in_features == 12
        assert made["[h; mix]"].out.in_features == 2 * settings.hidden + 8

    @pytest.mark.parametrize("name", ["average", "h", "[h; mix]"])
    def test_bilstm_sees_each_sentence_alone(self, name: str) -> None:
        torch.manual_seed(0)
        settings = tagger.TaggerSettings(tagger="bilstm", hidden=3)
        model = tagger.TaggerModel(3, 4, 2, tagger.features(3)[name], settings).eval()
        states = torch.randn(7, 5, 4)
        together = model(states, [2, 5])
        torch.testing.assert_close(together, torch.cat([model(states[:2], [2]), model(states[2:], [5])]))

    def test_the_mix_finds_the_layer_that_knows(self) -> None:
        """Only layer 2 tells the labels apart, so s goes there and the other layers score by chance."""
        rng = np.random.default_rng(0)
        names = ("A", "B")

        def side(n: int) -> data.Labelled:
            states = rng.normal(size=(n * 5, 5, 4)).astype(np.float32)
            kinds = rng.integers(0, 2, n * 5)
            states[:, 3, 0] = 3.0 * (2 * kinds - 1)
            found = data.TokenStates(states, np.arange(0, n * 5 + 1, 5), ("",) * n, "made up", 0)
            sentences = [
                data.LabelledSentence(("w",) * 5, tuple(names[k] for k in kinds[i * 5 : i * 5 + 5]), "") for i in range(n)
            ]
            return data.Labelled(found, sentences)

        settings = tagger.TaggerSettings(epochs=10, batch=8, learning_rate=0.05)
        train, test = side(60), side(40)
        wanted = tagger.chosen_features("x,top,mix", 3)
        runs = tagger.probe_tagging(train, test, metric="accuracy", seeds=[0], settings=settings, features=wanted)
        found = {run.feature: run for run in runs}
        assert found["layer 2 (top)"].score > 0.99
        assert found["mix"].score > 0.99
        assert found["x"].score < 0.7
        shares = found["mix"].s
        assert shares is not None
        assert max(shares) == shares[2] > 0.6
        again = tagger.probe_tagging(train, test, metric="accuracy", seeds=[0], settings=settings, features=wanted[2:])
        assert (again[0].score, again[0].s, again[0].gamma) == (found["mix"].score, shares, found["mix"].gamma)


class TestSenses:
    def instances(self, kinds: list[str]) -> list[data.SenseInstance]:
        return [data.SenseInstance(str(i), ("w",), 0, frozenset(kind.split(",")), "") for i, kind in enumerate(kinds)]

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
        occurrences = rng.normal(size=(24, 5)).astype(np.float32)
        unit = occurrences / np.linalg.norm(occurrences, axis=1, keepdims=True)
        run = next(
            r for r in senses.probe_senses({"v": occurrences}, self.instances(kinds), seeds=[7], n_folds=4) if r.feature == "v"
        )
        order = np.random.default_rng(7).permutation(24)
        right = 0
        for fold in range(4):
            test = order[fold::4]
            for i in test:
                others = [j for j in range(24) if j not in test]
                cosines = [unit[i] @ unit[j] for j in others]
                right += kinds[others[int(np.argmax(cosines))]] == kinds[i]
        assert run.nearest == right / 24

    def test_more_folds_than_instances(self) -> None:
        with pytest.raises(LabelError, match="3 instances in 10 folds"):
            senses.probe_senses({"v": np.ones((3, 2), np.float32)}, self.instances(["a", "b", "a"]), seeds=[0])


class TestResults:
    def counts(self, right: int) -> results.Counts:
        return results.Counts(np.full(10, right), np.full(10, 10), np.full(10, 10))

    def test_table_bars_and_sets(self) -> None:
        runs = [results.TaggingRun("x", seed, self.counts(5 + seed), 1.0, gamma=1.5) for seed in (0, 1)]
        runs += [results.TaggingRun("mix", seed, self.counts(9), 1.0, (0.0, 1.0), (0.25, 0.75), 2.0) for seed in (0, 1)]
        found = results.tagging_result(
            "POS", "accuracy", runs, baselines={"guess": self.counts(3)},
            control=[results.TaggingRun("x", 0, self.counts(4), 1.0)], logistic={"mix": self.counts(8)},
        )  # fmt: skip
        assert results.markdown([found]).splitlines() == [
            "| feature | POS, accuracy | POS, control task | POS, selectivity | POS, logistic regression |",
            "|---|---|---|---|---|",
            "| guess | 30.00 | – | – | – |",
            "| x | 55.00 ± 7.07 | 40.00 | 15.00 | – |",
            "| mix | 90.00 ± 0.00 | – | – | 80.00 |",
        ]
        assert results.differences(found).splitlines()[1].split() == ["mix", "-", "x", "+35.00", "[+35.00,", "+35.00]", "ahead"]
        assert results.as_json([found])[0]["differences"][0]["verdict"] == "ahead"
        bar = {line.split("  ")[1].strip(): line.count("█") for line in results.bars(found).splitlines()[1:]}
        assert bar == {"s x": 8, "s layer 1": 22, "γ": 30}
        assert results.weight_sets(found)["seed1"] == {"w": [0.0, 1.0], "gamma": 2.0}

    def test_the_picture_has_every_task_s_shares_and_gamma(self, tmp_path: Path) -> None:
        mixes = results.Mixes((results.Spread((0.25, 0.35)), results.Spread((0.75, 0.65))), results.Spread((2.0, 3.0)))
        alone = results.Mixes((results.Spread((0.9,)), results.Spread((0.1,))), results.Spread((1.25,)))
        found = [results.Result(name, ("F1",), {}, learned, ()) for name, learned in (("A", mixes), ("B", alone), ("C", None))]
        results.plot(found, str(tmp_path / "a.svg"))
        texts = set(re.findall(r"<!-- (.*?) -->", (tmp_path / "a.svg").read_text(encoding="utf-8")))
        assert {"A", "B", "0.30 ± 0.07", "0.70 ± 0.07", "0.90", "0.10", "2.50 ± 0.71", "1.25"} <= texts
        assert "C" not in texts  # it learned no mix

    def test_nothing_learned_nothing_to_plot(self, tmp_path: Path) -> None:
        found = results.tagging_result("POS", "accuracy", [results.TaggingRun("x", 0, self.counts(5), 1.0)])
        assert results.bars(found) == ""
        with pytest.raises(ValueError, match="no learned mix to plot"):
            results.plot([found], str(tmp_path / "a.svg"))


class TestCommand:
    def test_tag(self, sets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        outputs = {name: str(tmp_path / name) for name in ("a.json", "mix.json")}
        written = ("--json", outputs["a.json"], "--mix-weights", outputs["mix.json"])
        code = tag(sets, "--name", "UPOS", "--given-column", "form", "--control", "--logistic", *written, *FAST)
        printed = capsys.readouterr()
        assert code == 0
        assert [line.split("|")[1].strip() for line in printed.out.splitlines() if line.startswith("| ")] == [
            "feature", "most frequent of the word", "most frequent of column form",
            "x", "layer 1", "layer 2 (top)", "average", "mix",
        ]  # fmt: skip
        assert "UPOS: differences in points" in printed.out
        assert "UPOS: learned mix" in printed.out
        assert printed.err.count("seed 0") == 10  # the task and the control task
        found = json.loads((tmp_path / "a.json").read_text())[0]
        # The label follows from the word: guessing it by the word, or by a column that repeats it, is right everywhere.
        assert found["scores"]["most frequent of the word"]["accuracy"]["mean"] == 1.0
        assert found["scores"]["most frequent of column form"]["accuracy"]["mean"] == 1.0
        assert found["scores"]["x"]["logistic regression"]["mean"] == 1.0
        assert found["scores"]["x"]["accuracy"]["mean"] > 0.9  # the label follows from the word
        assert sum(s["mean"] for s in found["mix"]["s"]) == pytest.approx(1)
        (learned,) = read_weight_sets(outputs["mix.json"])
        assert learned.gamma == pytest.approx(found["mix"]["gamma"]["mean"])
        assert sum(learned.s) == pytest.approx(1)

    def test_labels_that_the_stores_keep_are_those_of_the_files(self, sets: Path, tmp_path: Path) -> None:
        stores = ["--train", str(sets / "train"), "--test", str(sets / "test")]
        options = ["--features", "x", "--seeds", "1", "--given-column", "xpos", "--quiet", *FAST]
        files = ["--train-labels", str(sets / "train.conllu.xz"), "--test-labels", str(sets / "test.conllu.xz")]
        for name, labels in (("kept", ["--label", "upos"]), ("files", [*files, "--column", "upos"])):
            assert main(["probe", "tag", *stores, *labels, *options, "--json", str(tmp_path / name)]) == 0
        kept, of_files = (json.loads((tmp_path / name).read_text())[0]["scores"] for name in ("kept", "files"))
        assert kept == of_files
        assert kept["x"]["accuracy"]["mean"] > 0.9

    @pytest.mark.parametrize(
        ("options", "code", "message"),
        [
            (("--label", "deprel"), 3, "keeps no values of tokens called 'deprel' (it has upos, xpos): embed with --keep-fields"),
            (("--label", "upos", "--column", "upos"), 2, "--label takes the labels from the stores: leave --column out"),
            (("--column", "upos"), 2, "--train-labels is missing: name the file, or with --label a field"),
        ],
    )
    def test_labels_from_one_place(
        self, sets: Path, options: tuple[str, ...], code: int, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["probe", "tag", "--train", str(sets / "train"), "--test", str(sets / "test"), *options]) == code
        assert message in capsys.readouterr().err

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
            (("--features", "layer 9"), 2, "no feature 'layer 9'; this model has x, layer 1, layer 2 (top), average, mix, proj"),
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
