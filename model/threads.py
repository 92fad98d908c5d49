"""Threads for the two directions.

PyTorch splits elementwise work among threads into equal chunks and computes what is left of a chunk after the last full
vector with other instructions, whose results differ in the last bit. Results that must not depend on a lane's place
therefore need chunks that are whole vectors: `whole_chunk_threads` picks a number of threads for which they are.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch

_GRAIN = 32768  # at::internal::GRAIN_SIZE: elementwise work below it is not split
VECTOR = 64  # elements in two vectors of the widest kind (AVX-512, 16 bits)


def whole_chunk_threads(available: int, sizes: Iterable[int]) -> int:
    """The largest number of threads ≤ available that splits elementwise work of all these sizes into whole vectors."""
    sizes = list(sizes)
    for threads in range(max(1, available), 1, -1):
        chunks = [-(-size // min(threads, -(-size // _GRAIN))) for size in sizes]
        if all(
            chunk >= size or chunk % VECTOR == 0 for chunk, size in zip(chunks, sizes, strict=True)
        ):
            return threads
    return 1


def direction_pool(workers: int, threads: int) -> ThreadPoolExecutor:
    """A pool whose workers each compute with so many threads of their own; the calling thread keeps its number."""
    before = torch.get_num_threads()
    started = Barrier(workers)

    def start() -> None:
        torch.get_num_threads()  # a thread's first question sets its number to the process's: ask before setting it
        torch.set_num_threads(threads)
        started.wait()

    pool = ThreadPoolExecutor(workers, thread_name_prefix="bilm")
    for future in [pool.submit(start) for _ in range(workers)]:
        future.result()
    torch.set_num_threads(
        before
    )  # PyTorch gives the number that was set last to threads that start later
    return pool
