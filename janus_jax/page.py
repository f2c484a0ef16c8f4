"""One HTML page with nothing to load: sections, tables, pictures inside."""

import html
from collections.abc import Iterable, Mapping
from typing import Any

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid #ddd; }}
table {{ border-collapse: collapse; margin: .5rem 0; }}
td, th {{ padding: .2rem .8rem; border-bottom: 1px solid #eee; text-align: right; }}
td:first-child, th:first-child {{ text-align: left; }}
img {{ max-width: 100%; }} pre {{ background: #f6f6f6; padding: .8rem; overflow: auto; font-size: 13px; }}
p.note {{ color: #555; }} nav a {{ margin-right: 1rem; }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


def page(title: str, sections: Mapping[str, str]) -> str:
    """A page with links to its sections."""
    links = "".join(f'<a href="#s{k}">{name}</a>' for k, name in enumerate(sections))
    parts = [f'<h2 id="s{k}">{name}</h2>\n{content}' for k, (name, content) in enumerate(sections.items())]
    return PAGE.format(title=html.escape(title), body="\n".join([f"<nav>{links}</nav>", *parts]))


def table(head: Iterable[Any], rows: Iterable[Iterable[Any]]) -> str:
    def cells(values, tag):
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(value))}</{tag}>" for value in values) + "</tr>"

    return "<table>" + cells(head, "th") + "".join(cells(row, "td") for row in rows) + "</table>"
