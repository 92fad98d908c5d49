"""What a GPU should reach, on paper: ``python -m benchmarks.gpu.paper [fill paper]`` prints tables; no GPU is asked.

fill   how full the grids are that the real planner makes of held-out text as one call, for lanes, rows of a group, and the
       length from which a sequence is computed with few lanes: cells that compute something, and of the rate of a full grid of as
       many lanes what an H100 would keep in bfloat16
paper  tokens/s by card, precision and lanes for the same text with the settings of the engine, and what each part takes

A kernel takes what its arithmetic or its bytes take, whichever is longer, at `EFFICIENCY` of the data sheet, and the gap before
it. A product is cut into tiles of 128 × 128: those of the last round leave processors idle (the projection of 2,048 lanes has 64
tiles). Both directions share the card: their work adds up, one direction's gaps are filled with the other's work. Weights are
read anew each step: both directions' are more than a card's cache holds. The character CNN, the table of gates, taking the
states out of the windows and the fill of grids are counted; the host is not.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from benchmarks.shared.support import Table, options_of
from benchmarks.shared.texts import SHAPES, Sentences, held_out_lines, running_text, take
from elmo_store.format.words import WordLimit
from model.characters import BOS, EOS
from model.engine.cuda import GROUP_ROWS, LANES, LONG_LANES, TABLE_BLOCK, TABLE_ROWS, long_tokens
from model.engine.cuda_direction import WINDOW
from model.engine.device import GateTable
from model.engine.planning.grid import Limits
from model.engine.planning.host import Group, Host, Prepared
from model.engine.planning.text import SentenceRows, Text
from model.options import BiLMOptions

GAP_SECONDS = 1.5e-6  # between two kernels of a graph
LEAST_SECONDS = 2e-6  # of a kernel
EFFICIENCY = 0.7  # of the data sheet, what cuBLAS reaches at these shapes
TILE = 128
POSITIONS = 12  # at which the CNN sees a word, on average
TABLES = ("fill", "paper")
PRECISIONS = ("float32", "tf32", "bfloat16")
FILLS = [(lanes, rows) for lanes in (1024, 2048, 4096) for rows in (1 << 19, 1 << 20)]
LONG = ((2048, 64), (600, 64), (300, 64), (150, 64), (300, 128), (100, 256))  # tokens, lanes


@dataclass(frozen=True)
class Card:
    """A data sheet: dense TFLOP/s by precision, memory in TB/s, the way to the host in GB/s, multiprocessors."""

    name: str
    tflops: dict[str, float]
    memory_tb_s: float
    host_gb_s: float
    processors: int


CARDS = (
    Card("A100", {"float32": 19.5, "tf32": 156, "bfloat16": 312}, 2.04, 25, 108),
    Card("H100", {"float32": 66.9, "tf32": 494, "bfloat16": 989}, 3.35, 50, 132),
    Card("H200", {"float32": 66.9, "tf32": 494, "bfloat16": 989}, 4.80, 50, 132),
    Card("B200", {"float32": 75, "tf32": 1100, "bfloat16": 2250}, 8.00, 50, 148),
)


@dataclass(frozen=True)
class Kernel:
    """A kernel: multiplications and additions, bytes read and written, tiles of a product (0: it is none)."""

    name: str
    flops: float
    bytes: float
    tiles: int = 0

    def seconds(self, card: Card, precision: str) -> float:
        """Alone on the card, without the gap before it."""
        busy = self.tiles / (math.ceil(self.tiles / card.processors) * card.processors) if self.tiles else 1.0
        computing = self.flops / (card.tflops[precision] * 1e12 * EFFICIENCY * busy)
        return max(computing, self.bytes / (card.memory_tb_s * 1e12 * EFFICIENCY), LEAST_SECONDS)


def product(name: str, rows: int, inputs: int, outputs: int, size: int) -> Kernel:
    """x [rows, inputs] · W, of numbers of ``size`` bytes."""
    numbers = rows * inputs + inputs * outputs + rows * outputs
    tiles = math.ceil(rows / TILE) * math.ceil(outputs / TILE)
    return Kernel(name, 2.0 * rows * inputs * outputs, numbers * size, tiles)


def number_bytes(precision: str) -> int:
    return 2 if precision == "bfloat16" else 4


def step_kernels(options: BiLMOptions, lanes: int, precision: str) -> list[Kernel]:
    """The kernels of one step of one direction, in order."""
    size, p, d = number_bytes(precision), options.projection_dim, options.dim
    kernels = []
    for layer in range(options.n_layers):
        gates = lanes * 4 * d * size  # bytes; the first layer adds its rows of the table
        load = Kernel(f"load_h {layer}", 0, lanes * 8)
        multiplied = product(f"gates {layer}", lanes, p if layer == 0 else 2 * p, 4 * d, size)
        cell = Kernel(f"cell {layer}", 0, gates * (2 if layer == 0 else 1) + lanes * (d * (8 + size) + 24))
        projected = product(f"projection {layer}", lanes, d, p, size)
        # Projected in; h, output (float32) and the next layer's input out; the skip's input in.
        finish = Kernel(f"finish {layer}", 0, lanes * p * (3 * size + 4 + (size if layer else 0)))
        kernels += [load, multiplied, cell, projected, finish]
    return kernels


def step_seconds(options: BiLMOptions, lanes: int, card: Card, precision: str) -> float:
    """Seconds in which both directions compute a step."""
    kernels = step_kernels(options, lanes, precision)
    work = sum(kernel.seconds(card, precision) for kernel in kernels)
    return max(2 * work, work + len(kernels) * GAP_SECONDS)


@dataclass(frozen=True)
class Filled:
    """A text as the planner lays it out: tokens, new words, rows of the gate tables, windows [groups] of (forward, backward)."""

    tokens: int
    words: int
    table_rows: int
    windows: list[tuple[list[int], list[int]]]  # lanes of each window
    used: float  # of the cells those that compute something

    def lstm_seconds(self, options: BiLMOptions, card: Card, precision: str) -> float:
        """A group ends with the direction that takes longer; a window takes as long however few of its steps are wanted."""
        windows = [max(group, key=sum) for group in self.windows]
        return sum(WINDOW * step_seconds(options, lanes, card, precision) for lanes in chain(*windows))

    def parts(self, options: BiLMOptions, card: Card, precision: str) -> dict[str, float]:
        """Seconds of the device by what it does."""
        p, d, size = options.projection_dim, options.dim, number_bytes(precision)
        block = product("table", TABLE_BLOCK, p, 4 * d, size).seconds(card, precision)
        filters, widest = options.n_filters, max(width for width, _ in options.filters)
        highways = self.words * options.n_highway * 2 * 2.0 * filters**2  # all else of the CNN is float32
        others = 2.0 * self.words * filters * (POSITIONS * widest * options.char_embedding_dim + p)
        plain = "tf32" if precision == "tf32" else "float32"
        cnn = highways / card.tflops[precision] + others / card.tflops[plain]
        moved = self.tokens * 2 * options.n_layers * p * (8 + 6 + 4)  # picked in float32, converted, put in their rows
        return {
            "steps": self.lstm_seconds(options, card, precision),
            "table": self.table_rows / TABLE_BLOCK * block,
            "characters": cnn / (1e12 * EFFICIENCY),
            "taking out": moved / (card.memory_tb_s * 1e12 * EFFICIENCY),
        }

    def rate(self, options: BiLMOptions, card: Card, precision: str) -> float:
        """Tokens/s: what the device computes, or what the way to the host takes in float16."""
        computed = self.tokens / sum(self.parts(options, card, precision).values())
        return min(computed, card.host_gb_s * 1e9 / (options.n_states * options.projection_dim * 2))


def limits_of(lanes: int, group_rows: int = GROUP_ROWS, long: tuple[int, int] | None = None) -> Limits:
    """Those of the GPU's engine, or with ``long`` (tokens, lanes) others."""
    tokens, long_lanes = long or (long_tokens(lanes, group_rows), LONG_LANES)
    return Limits([lanes], WINDOW, WINDOW * lanes, (), True, (long_lanes,), tokens, group_rows)


def fill(text: Text, limits: Limits) -> Filled:
    """One call by the real planner and the real table, every word new."""
    prepared = Host(lambda: limits, 1 << 18, WordLimit(), (BOS, EOS)).prepare(text, boundaries=False)
    plans = [grid.plan for group in prepared.groups for side in group.planned for grid in side]
    cells, used = sum(plan.n_cells for plan in plans), sum(plan.n_computed for plan in plans)
    windows = [lanes_of(group) for group in prepared.groups]
    rows = sum(table_rows(prepared, k) for k in (0, 1))
    return Filled(len(text.words), prepared.n_words, rows, windows, used / cells)


def lanes_of(group: Group) -> tuple[list[int], list[int]]:
    """Of each window, forward and backward."""
    forward, backward = ([lanes for grid in side for _, _, lanes in grid.plan.windows] for side in group.planned)
    return forward, backward


def table_rows(prepared: Prepared, k: int) -> int:
    """How many rows direction k's table of gates computes."""
    table = GateTable(TABLE_ROWS)
    for group in prepared.groups:
        for grid in group.planned[k]:
            for first, steps, _ in grid.plan.windows:
                table.slots(grid.plan.words[first : first + steps], prepared.n_words, 0)
    return table.n_computed


def texts() -> dict[str, Text]:
    """Held-out text as sentences, the same with one of 512 tokens, and its paragraphs; made-up sentences where there is none."""
    sentences = held_out_lines("tokenised") or take(running_text(), 700_000)
    long = [f"word{i}" for i in range(512)]
    named: dict[str, Sentences] = {"sentences": sentences, "one of 512": [*sentences, long]}
    if paragraphs := held_out_lines("raw"):
        named["paragraphs"] = [paragraphs[i] for i in np.random.default_rng(0).permutation(len(paragraphs))]
    return {name: Text.of([SentenceRows(s, 0, len(s)) for s in lines if s]) for name, lines in named.items()}


def fill_table(options: BiLMOptions, given: dict[str, Text]) -> None:
    """A line for each choice of lanes, rows of a group, and what is long."""
    card = CARDS[1]
    heads = [f"{name}, {what}" for name in given for what in ("cells", "rate")]
    table = Table("fill: cells that compute, and rate beside a full grid's", "lanes, rows, long → lanes", *heads, label_width=30)
    for lanes, rows in FILLS:
        full = step_seconds(options, lanes, card, "bfloat16") / lanes
        for long in LONG:
            cells: list[str] = []
            for text in given.values():
                filled = fill(text, limits_of(lanes, rows, long))
                rate = filled.tokens * full / filled.lstm_seconds(options, card, "bfloat16")
                cells += [f"{filled.used:.1%}", f"{rate:.0%}"]
            table.row(f"{lanes:5d} {rows:9,d} {long[0]:5d} → {long[1]}", *cells)


def paper_tables(options: BiLMOptions, text: Text) -> Iterator[str]:
    """Lines: tokens/s, then the shares of the parts and the kernels of a step on an H100."""
    yield f"\n{'paper: thousand tokens/s':28s}" + "".join(f"{card.name:>10s}" for card in CARDS)
    filled = {lanes: fill(text, limits_of(lanes)) for lanes in (1024, LANES, 4096)}
    for precision in PRECISIONS:
        for lanes, laid in filled.items():
            rates = "".join(f"{laid.rate(options, card, precision) / 1e3:10,.0f}" for card in CARDS)
            yield f"{precision:10s}{lanes:6d} lanes{'':6s}{rates}"
    for precision in PRECISIONS:
        parts = filled[LANES].parts(options, CARDS[1], precision)
        shares = ", ".join(f"{name} {seconds / sum(parts.values()):.1%}" for name, seconds in parts.items())
        yield f"\nH100, {precision}, {LANES} lanes: {shares}"
        yield from kernel_lines(step_kernels(options, LANES, precision), CARDS[1], precision, {})


def kernel_lines(kernels: Sequence[Kernel], card: Card, precision: str, measured: Mapping[str, float]) -> Iterator[str]:
    """Kernels in µs on paper, each alone, beside the seconds that were measured of some."""
    for kernel in kernels:
        seconds = measured.get(kernel.name)
        beside = "" if seconds is None else f"; measured {seconds * 1e6:9.1f}"
        yield f"    {kernel.name:24s}{kernel.seconds(card, precision) * 1e6:9.1f} µs on paper{beside}"


def main() -> None:
    args = options_of(__doc__, TABLES).parse_args()
    options, given = SHAPES["full"], texts()
    print("computed from data sheets and plans, nothing measured; full size")
    for name, text in given.items():
        print(f"{name}: {len(text.words):,} tokens, {len(text):,} lines, {int(text.lengths.max())} the longest")
    if "fill" in args.tables:
        fill_table(options, given)
    if "paper" in args.tables:
        print("\n".join(paper_tables(options, given["sentences"])))


if __name__ == "__main__":
    main()
