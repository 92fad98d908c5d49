"""Names in the scratch area of a job: where stages leave what the next ones need; and between a worker and what watches it.

Everything below ``_work/`` is removed when the store is complete; ``_shards/`` stays, it is the store's record of its shards.
"""

START = "_work/start.json"  # by the launcher: when this run started, how many pieces the input has
MODEL = "_work/model.safetensors"  # by the launcher: the weights, so that workers need nothing but the store
TASK_LIST = "_work/tasks.jsonl"  # by the launcher: every task of the input, a JSON object a line
READ = "_work/read"  # by stage A: one marker a task
BAD = "_work/bad"  # by stage A: a file for each task some of whose input can't be read
DEVICE = "_work/device"  # by the first worker that computes, unless the job is for CPUs: "cpu", or "cuda" and the card's name
PLAN = "_work/plan.json"  # by stage B: the sizes of the corpus
IDS = "_work/ids"  # by the number tasks: hashes of ids, a file for each part group and each run of id tables
SUMMARY = "_work/summary.json"  # by stage D, for a launcher that waits: sums over the markers of all shards
PROBLEM = "_work/problem.json"  # by stage D or the launcher, when work is left: why, and which kind of problem
REFUSED, STOPPED = (
    "refused",
    "stopped",
)  # kinds: too many of the input's records were refused; Ctrl-C or a signal
WATCHER = "ELMO_STORE_WATCHER"  # in a worker's environment: the descriptor of a pipe to the process that watches it
BROKEN_EXIT = 70  # of a worker process that ends itself, as its device is lost


def id_hashes(run: int, group: int) -> str:
    """Hashes of the ids of a part group that belong to a run of id tables: uint64 (high, low, sentence) for each."""
    return f"{IDS}/{run:03d}/{group:05d}"
