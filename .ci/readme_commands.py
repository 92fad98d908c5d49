"""Print the README's first two fenced ``bash`` blocks, one command a line; fail unless each is exactly one line.

Standard library only: it runs before anything is installed.
"""

import re
import sys
from pathlib import Path


def first_commands(readme: str, n_commands: int = 2) -> list[str]:
    """The first ``n_commands`` fenced bash blocks of ``readme``; ValueError if one is missing or has several lines."""
    blocks = re.findall(r"^```bash\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)[:n_commands]
    if len(blocks) < n_commands:
        raise ValueError(f"README.md has {len(blocks)} fenced bash blocks, {n_commands} are needed")
    for block in blocks:
        if len(block.strip().splitlines()) != 1:
            raise ValueError(f"a command of README.md must be one line, this block is not:\n{block}")
    return [block.strip() for block in blocks]


if __name__ == "__main__":
    print("\n".join(first_commands(Path(sys.argv[1]).read_text(encoding="utf-8"))))
