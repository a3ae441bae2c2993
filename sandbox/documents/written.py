"""What every builder says of the table that it wrote."""

from dataclasses import dataclass


@dataclass
class Tally:
    """Counts of one table, added to while it is written."""

    cells_as_text: int = 0
    """Cells that are no strings in the source and are text in the workbook, since Excel would show something else."""
    formula_like_cells: int = 0
    """Texts that a spreadsheet which opens a CSV takes for a formula or an error."""
    dates: int = 0
    """Texts that became dates, since that was asked for."""
    replaced_characters: int = 0
    """Halves of surrogate pairs, written as U+FFFD."""
