"""What a GPU should reach, on paper: kernels a step, bytes, tokens/s, from shapes and data sheets.

Printed by ``python -m benchmarks.engine paper``; where `engine` runs on a GPU the measured rate stands beside it. A kernel
takes what its arithmetic or its bytes take, whichever is longer, and the gap before it. Both directions share the card: their
work adds up, and one direction's gaps are filled with the other's work. Weights are read anew each step: both directions' are
more than a card's cache holds. Words are in the table; the host, the character CNN and the first window are not in it.
"""

from dataclasses import dataclass

from model.options import BiLMOptions

GAP_SECONDS = 1.5e-6  # between two kernels of a graph
EFFICIENCY = 0.7  # of the data sheet, what cuBLAS reaches at these shapes
FILL = 0.96  # of the grid's cells, `benchmarks.planning` with 2,048 lanes
LANES = (512, 1024, 2048)


@dataclass(frozen=True)
class Card:
    """A data sheet: dense TFLOP/s by precision, memory in TB/s, the way to the host in GB/s."""

    name: str
    tflops: dict[str, float]
    memory_tb_s: float
    host_gb_s: float


CARDS = (
    Card("A100", {"float32": 19.5, "tf32": 156, "bfloat16": 312}, 2.04, 25),
    Card("H100", {"float32": 66.9, "tf32": 494, "bfloat16": 989}, 3.35, 50),
    Card("H200", {"float32": 66.9, "tf32": 494, "bfloat16": 989}, 4.80, 50),
    Card("B200", {"float32": 75, "tf32": 1100, "bfloat16": 2250}, 8.00, 50),
)


@dataclass(frozen=True)
class Kernel:
    """One kernel of a step: multiplications and additions of products, bytes read and written."""

    name: str
    flops: float
    bytes: float


def step_kernels(options: BiLMOptions, lanes: int, precision: str) -> list[Kernel]:
    """The kernels of one step of one direction, in order."""
    size = 2 if precision == "bfloat16" else 4
    p, d = options.projection_dim, options.dim
    found = []
    for layer in range(options.n_layers):
        inputs = p if layer == 0 else 2 * p
        gates = lanes * 4 * d * size  # as bytes
        found += [
            Kernel("load_h", 0, lanes * 8),
            Kernel("gates", 2.0 * lanes * inputs * 4 * d, inputs * 4 * d * size + lanes * inputs * size + gates),
            # Gates, the first layer's rows of the table, c in and out, hidden out; what lanes load and save is one in twenty.
            Kernel("cell", 0, gates * (2 if layer == 0 else 1) + 2 * lanes * d * 4 + lanes * d * size + lanes * 24),
            Kernel("projection", 2.0 * lanes * d * p, d * p * size + lanes * d * size + lanes * p * size),
            # Projected in; h, output (float32) and the next layer's input out; the skip's input in.
            Kernel("finish", 0, lanes * p * (3 * size + 4 + (size if layer else 0))),
        ]
    return found


def step_seconds(kernels: list[Kernel], card: Card, precision: str, efficiency: float = EFFICIENCY) -> float:
    """Seconds in which both directions compute a step."""
    rate, bandwidth = card.tflops[precision] * 1e12 * efficiency, card.memory_tb_s * 1e12 * efficiency
    work = sum(max(kernel.flops / rate, kernel.bytes / bandwidth) for kernel in kernels)
    return max(2 * work, work + len(kernels) * GAP_SECONDS)


def tokens_per_second(options: BiLMOptions, lanes: int, precision: str, card: Card, dtype_bytes: int = 2) -> float:
    """What the card should give: the step's rate, or what the way to the host takes."""
    computed = lanes * FILL / step_seconds(step_kernels(options, lanes, precision), card, precision)
    return min(computed, card.host_gb_s * 1e9 / (options.n_states * options.projection_dim * dtype_bytes))


def table(options: BiLMOptions) -> list[str]:
    """The model's lines: for each precision and number of lanes what a step is, and what each card should give."""
    heads = "".join(f"{card.name:>10s}" for card in CARDS)
    lines = [f"{'precision':10s}{'lanes':>6s}{'kernels':>9s}{'GFLOP':>8s}{'MB':>7s}   tokens/s in thousands:{heads}"]
    for precision in ("float32", "tf32", "bfloat16"):
        for lanes in LANES:
            kernels = step_kernels(options, lanes, precision)
            gflop, megabytes = sum(k.flops for k in kernels) / 1e9, sum(k.bytes for k in kernels) / 1e6
            rates = "".join(f"{tokens_per_second(options, lanes, precision, card) / 1e3:10,.0f}" for card in CARDS)
            lines.append(f"{precision:10s}{lanes:6d}{len(kernels):9d}{gflop:8.1f}{megabytes:7.0f}{'':26s}{rates}")
    taken = f"{EFFICIENCY:.0%} of data sheets, {GAP_SECONDS * 1e6} µs between kernels, {FILL:.0%} of cells used"
    lines.append(f"kernels, GFLOP, MB: a step of one direction; {taken}")
    return lines


def beside(options: BiLMOptions, lanes: int, precision: str, device_name: str, measured: float) -> str:
    """One line for a card that is there: what it should have given, and what it gave."""
    card = next((card for card in CARDS if card.name in device_name), None)
    if card is None:
        return f"    on paper: no data sheet of {device_name} in benchmarks/gpu_model.py"
    wanted = tokens_per_second(options, lanes, precision, card)
    return f"    on paper {wanted:,.0f} tokens/s; measured {measured:,.0f} = {measured / wanted:.0%}"
