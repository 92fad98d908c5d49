"""Hooks of the site (mkdocs.yml): pages that lie outside docs/ belong to it too, below `repository/` under their own paths."""

import os
import posixpath
import re
from typing import Any

from mkdocs.structure.files import File, Files

PAGES = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "examples/README.md",
    "model/data/default/README.md",
    "model/data/default/curve.svg",
)
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """The site's files with those pages among them."""
    root = os.path.dirname(config.config_file_path)
    for path in PAGES:
        files.append(
            File.generated(config, f"repository/{path}", abs_src_path=os.path.join(root, path))
        )
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The page with its links as they are in the site; a file of the repository that is no page of it is named, not linked."""
    here, root = page.file.src_uri, os.path.dirname(config.config_file_path)
    own_path = (
        here.removeprefix("repository/") if here.startswith("repository/") else f"docs/{here}"
    )

    def link_in_site(match: re.Match[str]) -> str:
        path, anchor = (
            posixpath.normpath(posixpath.join(posixpath.dirname(own_path), match[1])),
            match[2] or "",
        )
        target = path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"
        if files.get_file_from_path(target) is None and os.path.exists(os.path.join(root, path)):
            return f"] (`{path}`)"
        return f"]({posixpath.relpath(target, posixpath.dirname(here) or '.')}{anchor})"

    blocks = FENCE.findall(markdown)
    texts = [LINK.sub(link_in_site, text) for text in FENCE.split(markdown)]
    return texts[0] + "".join(block + text for block, text in zip(blocks, texts[1:], strict=True))
