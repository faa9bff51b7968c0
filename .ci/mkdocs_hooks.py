"""Hooks of `make docs`: pages that are made from the program, pages of other folders, and links.

    cli.md                  the help of every command
    metrics.md              metrics for Prometheus
    OUTSIDE                 files of the repository outside of docs/

A link to a file that the site does not have becomes its path: in the repository that `repo_url` of
mkdocs.yml names, or else as text.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from luwu.commands.main import main as luwu
from luwu.commands.table import GROUPS, module_of
from luwu.monitor.prometheus import HELP, JOB_HELP

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/results/README.md": "results.md",
    "benchmarks/results/campaigns.md": "campaigns.md",
}
"""Files of the repository that are pages of the site, and their addresses there."""
CLI_HEAD = """\
# Command line

What `luwu COMMAND --help` prints. Most flags are keys of the [configuration](configuration.md),
which also lists the [exit codes](configuration.md#exit-codes); [errors](errors.md) explains the
codes at the end of messages.
"""
METRICS_HEAD = """\
# Metrics

What `luwu status --prometheus PORT` serves: see [watch a run](watch.md#prometheus-and-grafana). A
name that ends with `_total` is a counter, of this start of its process; the others are gauges. Each
has the label `job`; that of a role, link, slot or engine names it too.
"""
_LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)\s:#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Adds the pages that do not lie in docs/."""
    pages = {"cli.md": command_line(), "metrics.md": metrics()}
    for source, address in OUTSIDE.items():
        pages[address] = (ROOT / source).read_text(encoding="utf-8")
    for address, text in pages.items():
        files.append(File.generated(config, address, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files, **_: Any) -> str:
    """Turns links to files of the repository into links of the site, or into paths."""
    address = page.file.src_uri
    sources = {where: source for source, where in OUTSIDE.items()}
    folder = (ROOT / sources.get(address, f"docs/{address}")).parent

    def link(found: re.Match[str]) -> str:
        mark, text, target, anchor = found.groups()
        there = Path(os.path.normpath(folder / target))
        if not there.exists() or ROOT not in there.parents:
            return found[0]  # a page that is made, no link, or a broken one, which mkdocs reports
        name = there.relative_to(ROOT).as_posix()
        where = OUTSIDE.get(name, name.removeprefix("docs/"))
        if files.get_file_from_path(where) is not None:
            path = os.path.relpath(where, os.path.dirname(address) or ".")
            return f"{mark}[{text}]({path}{anchor or ''})"
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{name})"
        return text if name in text else f"{text} (`{name}`)"

    return _LINK.sub(link, markdown)


def command_line() -> str:
    """The reference of the command line."""
    lines = [CLI_HEAD]
    for group, commands in GROUPS.items():
        lines += [f"## {group}\n"]
        for name, meaning in commands.items():
            lines += [f"### luwu {name}\n", f"{meaning[0].upper()}{meaning[1:]}.\n", *_help(name)]
            for inner in getattr(module_of(name).run, "commands", ()):
                lines += [f"#### luwu {name} {inner}\n", *_help(name, inner)]
    return "\n".join(lines)


def _help(*command: str) -> list[str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert luwu([*command, "--help"]) == 0, command
    return ["```text", printed.getvalue().rstrip(), "```\n"]


def metrics() -> str:
    """The reference of the metrics."""
    lines = [METRICS_HEAD]
    for title, table in (("The job", JOB_HELP), ("Switch and node", HELP)):
        lines += [f"## {title}\n", "| metric | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {meaning} |" for name, meaning in table.items()]
        lines.append("")
    return "\n".join(lines)
