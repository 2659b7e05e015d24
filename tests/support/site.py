"""Makes the site of docs/ and checks it: `make docs`.

1. build/site-source is a copy of docs/ in which links to files outside of docs/ are texts: the site has no such files.
2. zensical writes build/site, strictly.
3. Every link of every page of build/site has to lead to a page or file, and to a heading if it names one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
SOURCE: Final = ROOT / "build" / "site-source"
SITE: Final = ROOT / "build" / "site"
_LINK: Final = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
_SECONDS: Final = 300.0


class Page(HTMLParser):
    """The links and anchors of one page of the site."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect."""
        for name, value in attrs:
            if value is not None and name == "id":
                self.anchors.add(value)
            if value is not None and ((tag in ("a", "link") and name == "href") or (tag == "img" and name == "src")):
                self.links.append(value)


def prepared(text: str, page: Path) -> str:
    """A page of docs/ whose links outside of docs/ are texts."""

    def kept(found: re.Match[str]) -> str:
        target = found[2].partition("#")[0]
        leaves = not urlsplit(target).scheme and not (page.parent / target).resolve().is_relative_to(DOCS)
        return found[1] if leaves else found[0]

    return _LINK.sub(kept, text)


def prepare() -> None:
    """Write build/site-source."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(DOCS, SOURCE)
    for page in DOCS.rglob("*.md"):
        (SOURCE / page.relative_to(DOCS)).write_text(prepared(page.read_text(encoding="utf-8"), page), encoding="utf-8")


def broken_links(site: Path) -> list[str]:
    """Links within the site that lead nowhere, as `PAGE -> LINK`."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            found = pages.get(target)
            anchor = unquote(parts.fragment)
            if not target.exists() or (anchor and found is not None and anchor not in found.anchors):
                broken.append(f"{path.relative_to(site)} -> {link}")
    return broken


def main() -> int:
    """Build and check."""
    prepare()
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", "mkdocs.yml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        return 1
    broken = broken_links(SITE)
    print("\n".join(broken) or f"{len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}, no broken link")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
