"""Reading a store: ``python -m benchmarks.store [reading loader members clients encodings]`` gives tables.

Stores are of made-up states in float16. What is compared is measured in turns, medians of rounds, other sentences each round, in
CPU time where one process reads, since the load of a shared machine moves that less.

reading    random sentences one by one and 64 a call, and scans by 64, beside np.memmap, Hugging Face's Arrow file, and Lance if
           it is installed; datasets for PyTorch beside the store itself
loader     10^5 sentences, and 3 x 10^6 in 30 stores, shuffled, by a DataLoader of 32 with 0 and 2 workers, with text and without,
           beside np.memmap and Hugging Face datasets (with text)
members    90,000 sentences in 100 and in 1,000 members, beside one store
clients    64 random sentences over S3 by obstore and by s3fs: with versitygw (PATH or VERSITYGW) as the server, or moto
encodings  what dtypes and compressions cost and save, with the states that the default model gives for examples/sample
"""

from collections.abc import Callable
from pathlib import Path

from benchmarks.shared.support import machine, options_of, working_folder
from benchmarks.store.others import clients, encodings
from benchmarks.store.reading import loader, members, reading

TABLES: dict[str, Callable[[Path], None]] = {
    "reading": reading, "loader": loader, "members": members, "clients": clients, "encodings": encodings,
}  # fmt: skip


def main() -> None:
    parser = options_of(__doc__, [*TABLES])
    parser.add_argument(
        "--folder",
        type=Path,
        help="where stores lie, kept for the next run (default: a temporary one)",
    )
    args = parser.parse_args()
    print(machine(), flush=True)
    with working_folder(args.folder) as folder:
        for name in args.tables:
            TABLES[name](folder)


if __name__ == "__main__":
    main()
