"""Which epoch an iteration is, the same in all workers of a DataLoader, which tell each other by shared memory.

Nothing in a training loop has to call `set_epoch`: Lightning, for one, does not call it on a dataset. So each iteration is
the epoch after the one before it. The process that owns the dataset does not see that a DataLoader starts an iteration; its
workers do, each for itself, and may be new processes each time. Therefore each worker records which iteration it has begun,
by a number that only workers of the same iteration have, and which epoch that is. A worker that finds a record of its own
iteration takes the epoch from there; one that finds none takes the epoch after the last. Two workers that begin at the same
time find the same records, and so the same epoch: no lock is needed.
"""

from typing import Any

import torch

NOT_SET = -1
READERS = (
    65  # rows of records: the main process has the first, workers share the others by their numbers
)
RECORDS = 4  # of each reader: iterations that began last
# A record is an iteration's token, and in its low 32 bits how many iterations have begun since an epoch was set.
TOKENS = 2**31 - 1
COUNT = 2**32 - 1


class EpochCounter:
    """Counts iterations from the epoch that was set, in all processes that share this object. The first epoch is 0."""

    def __init__(self) -> None:
        self._first = torch.tensor([NOT_SET]).share_memory_()  # the epoch that was set
        self._records = torch.zeros(READERS, RECORDS, dtype=torch.int64).share_memory_()
        self._n_begun = 0  # iterations that this process has begun

    @property
    def is_set(self) -> bool:
        """Return True if an epoch was set."""
        return self._first.item() != NOT_SET

    @property
    def upcoming(self) -> int:
        """The epoch of the next iteration."""
        return self._epoch_set() + int((self._records & COUNT).max())

    def set(self, epoch: int) -> None:
        """Make ``epoch`` that of the next iteration, in every process."""
        self._first.fill_(epoch)
        self._records.zero_()

    def begin(self, worker: Any = None) -> int:
        """Record that this process begins an iteration, and return its epoch.

        ``worker``: what ``torch.utils.data.get_worker_info`` says of the process.
        """
        self._n_begun += 1
        # A DataLoader draws the seed of its workers for each iteration; workers that live on keep it.
        iteration = 0 if worker is None else worker.seed - worker.id
        token = 1 + hash((iteration, self._n_begun, worker is None)) % TOKENS
        reader = 0 if worker is None else 1 + worker.id % (READERS - 1)
        records = self._records.clone()
        counts = records & COUNT
        of_this_iteration = counts[(records >> 32) == token]
        count = int(of_this_iteration[0]) if len(of_this_iteration) else 1 + int(counts.max())
        oldest = int(counts[reader].argmin())
        self._records[reader, oldest] = token << 32 | count  # one write of 8 bytes
        return self._epoch_set() + count - 1

    def _epoch_set(self) -> int:
        return max(0, int(self._first.item()))
