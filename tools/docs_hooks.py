"""mkdocs hook: links from the docs into `src/` work in the repository and on the built site.

Every source file that a page links to gets a page of its own on the site; a link to a file that
does not exist stays as it is, so that `mkdocs build --strict` reports it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\]\((?:\.\./)+(src/[\w/]+\.py)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each source file that is linked to."""
    pages = [file.content_string for file in files.documentation_pages()]
    for path in sorted({path for text in pages for path in _LINK.findall(text)}):
        source = ROOT / path
        if source.is_file():
            content = f"# {path}\n\n```python\n{source.read_text(encoding='utf-8')}```\n"
            files.append(
                File.generated(
                    config, f"{path}.md", content=content, inclusion=InclusionLevel.NOT_IN_NAV
                )
            )
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links at those pages."""
    up = "../" * page.file.src_uri.count("/")

    def link(match: re.Match[str]) -> str:
        path = match[1]
        return f"]({up}{path}.md)" if (ROOT / path).is_file() else match[0]

    return _LINK.sub(link, markdown)
