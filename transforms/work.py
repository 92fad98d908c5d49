"""Names in the scratch area of a job: where stages leave what the next ones need. Imports nothing.

Everything below ``_work/`` is removed when the store is complete; ``_shards/`` stays, it is the store's record of its
shards.
"""

WORK = "_work"
START = "_work/start.json"  # by the launcher: when this run started, how many pieces the input has
MODEL = "_work/model.safetensors"  # by the launcher: the weights, so that workers need nothing but the store
TASK_LIST = "_work/tasks.jsonl"  # by the launcher: every task of the input, a JSON object a line
UNPACKED = "_work/unpacked"  # by stage A: one marker a large stream that was cut into blobs
BLOBS = "_work/blobs"  # by stage A: their text
READ = "_work/read"  # by stage A: one marker a task
PROGRESS = "_work/progress"  # by workers: how far each is
PLAN = "_work/plan.json"  # by stage B: the sizes of the corpus
NUMBERED = "_work/numbered"  # by the number tasks: one marker a part
PROBLEM = "_work/problem.json"  # by stage D, when work is left: why
SHARDS = "_shards"  # by stage C: one marker a shard


def numbered_marker(part: int) -> str:
    """The marker of a part that has its final numbers."""
    return f"{NUMBERED}/{part:05d}.json"
