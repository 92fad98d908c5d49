"""Names in the scratch area of a job: where stages leave what the next ones need. Imports nothing.

Everything below ``_work/`` is removed when the store is complete; ``_shards/`` stays, it is the store's record of its
shards.
"""

WORK = "_work"
START = "_work/start.json"  # by the launcher: when this run started, how many pieces the input has
MODEL = "_work/model.safetensors"  # by the launcher: the weights, so that workers need nothing but the store
PIECE_LIST = "_work/pieces.jsonl"  # by the launcher: every piece of the input, a JSON object a line
PIECES = "_work/pieces"  # by stage A: one marker a piece
PLAN = "_work/plan.json"  # by stage B: the sizes of the corpus
NUMBERED = "_work/numbered"  # by the number tasks: one marker a part
PROBLEM = "_work/problem.json"  # by stage D, when work is left: why
SHARDS = "_shards"  # by stage C: one marker a shard


def numbered_marker(part: int) -> str:
    """The marker of a part that has its final numbers."""
    return f"{NUMBERED}/{part:05d}.json"
