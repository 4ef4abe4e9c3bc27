"""What `fit`, `validate` and `test` show of all that Lightning says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from lightning.pytorch.callbacks import ModelSummary
from lightning.pytorch.utilities.model_summary import get_human_readable_count
from rich.table import Table

from lightning_tgnn.commands.shared.printed import print_table

_LEFT_OUT = (
    "💡 Tip",
    "Restoring states from the checkpoint path",  # it says once more when it has
    "Trainer already configured with model summary callbacks",
)


class ParameterSummary(ModelSummary):
    """A table of the parts of a task that have parameters.

    Lightning's also has the metrics, which have none, and floating-point operations, which nobody has counted yet.
    """

    @staticmethod
    def summarize(
        summary_data: list[tuple[str, list[str]]],
        total_parameters: int,
        trainable_parameters: int,
        model_size: float,
        *args: object,
        **kwargs: object,
    ) -> None:
        """Print it."""
        columns = {title: values for title, values in summary_data if title in ("Name", "Type", "Params")}
        table = Table(*(title.lower() for title in columns))
        table.columns[-1].justify = "right"
        for row in zip(*columns.values(), strict=True):
            if row[-1].strip() != "0":
                table.add_row(*row)
        total, trained = map(get_human_readable_count, (total_parameters, trainable_parameters))
        trained = "" if trained == total else f", {trained} of them trained"
        table.caption, table.caption_justify = f"{total} parameters{trained}, {model_size:.3f} MB", "left"
        print_table(table)


@contextmanager
def less_from_lightning() -> Iterator[None]:
    """Leave out advertisements, and repeated messages."""
    logger, said = logging.getLogger("lightning.pytorch.utilities.rank_zero"), set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_shown = message not in said and not message.startswith(_LEFT_OUT)
        said.add(message)
        return is_shown

    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)
