"""Reading a store: ``python -m benchmarks.store [local training open loader s3 members clients encodings]`` gives tables.

Stores are of made-up states, by default of a narrow model, 5 states x 16 channels in float16; the same sentences in HDF5, one
dataset a sentence, float32, as earlier tools write them. What is compared is measured in turns, medians of three, other
sentences each round. 10^6 sentences take 10 GB and ten minutes to make.

local      random sentences out of memory and off the disk beside HDF5, scans of all states beside reading the files
training   wide rows in memory by one process's CPU time, beside np.memmap and Hugging Face's Arrow file
open       a fresh process that opens a store and reads one sentence; a dataset of all its sentences
loader     mixed features by a DataLoader of two workers, in random order
s3         requests and bytes of a sentence on an S3-compatible server on loopback (needs moto[server] and s3fs)
members    a collection of 100 members beside one store of as many sentences: opening, random sentences, ids, scans
clients    64 random sentences, and whole shards of 21 MB, over S3 by obstore and by s3fs: with versitygw (PATH or VERSITYGW)
           as the server, or moto
encodings  what dtypes and compressions cost and save, with the states that the default model gives for examples/sample
"""

from collections.abc import Callable

from benchmarks.shared.support import machine, options_of, working_folder
from benchmarks.store.local import ROUNDS, encodings, local, members, opening
from benchmarks.store.remote import clients, remote
from benchmarks.store.training import loader, training

TABLES: dict[str, Callable[..., None]] = {
    "local": local, "training": training, "open": opening, "loader": loader, "s3": remote,
    "members": members, "clients": clients, "encodings": encodings,
}  # fmt: skip


def main() -> None:
    parser = options_of(__doc__, [*TABLES], folder=True)
    add = parser.add_argument
    add("--sizes", type=int, nargs="+", default=[10**4, 10**5, 10**6], help="sentences of local, open (default: 10^4 10^5 10^6)")
    args = parser.parse_args()
    print(f"{machine()}; medians of {ROUNDS} rounds", flush=True)
    with working_folder(args.folder) as folder:
        for name in args.tables:
            TABLES[name](folder, *([args.sizes] if name in ("local", "open") else []))


if __name__ == "__main__":
    main()
