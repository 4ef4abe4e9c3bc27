"""``lightning-tgnn report``: one HTML page of a run."""

from __future__ import annotations

from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lightning_tgnn.commands.fit.parse_errors import OneLineErrors
from lightning_tgnn.commands.report.run_log import find_run, read_run
from lightning_tgnn.commands.report.run_page import page_of
from lightning_tgnn.commands.report.run_settings import read_settings
from lightning_tgnn.files.whole import write_text

_DESCRIPTION = """Write one HTML page of a run from its logs: figures, settings, curves, shares of time, tables.

  lightning-tgnn report runs/quickstart/version_0
  lightning-tgnn report runs/quickstart --output quickstart.html     the latest version that has trained
"""


def report(arguments: Sequence[str]) -> None:
    """Run the command.

    Raises:
        DataError: There is no run that has logged something.
        InvalidArgumentError: The page cannot be written, or does not fit.
    """
    parser = OneLineErrors(
        "lightning-tgnn report",
        description=_DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="Folder of a run, or of its versions.")
    parser.add_argument("--output", help="The page; report.html in the folder of the run by default.")
    chosen = parser.parse_args(arguments)
    folder = find_run(chosen.run_dir)
    log = read_run(folder)
    settings, without = read_settings(folder)
    notices = [*log.notices, *([] if without is None else [without])]
    if folder != Path(chosen.run_dir):
        which = "the latest version that has trained" if log.has_trained else "the latest version"
        notices.insert(0, f"{folder.name} is {which} in {chosen.run_dir}")
    output = Path(chosen.output) if chosen.output else folder / "report.html"
    write_text(output, page_of(log, settings, notices))
    console = Console()
    for line in (*notices, f"page: {output}"):
        console.print(line, soft_wrap=True, highlight=False)
