"""Prints an office document's text by lines. Usage: python office_text.py PATH

Paragraphs and table rows (cells joined by tabs) in their order; a line `## …` before each sheet or slide. Runs in a jail.
"""

import sys


def _flat(text):
    return str(text).replace("\t", " ").replace("\r", " ").replace("\n", " ")


def _docx(path):
    import docx
    from docx.table import Table

    document = docx.Document(path)
    for section in document.sections:
        for name, part in (("Header", section.header), ("Footer", section.footer)):
            text = " ".join(p.text for p in part.paragraphs if p.text)
            if text and not part.is_linked_to_previous:
                yield f"{name}: {text}"
    for block in document.iter_inner_content():
        if isinstance(block, Table):
            for row in block.rows:
                yield "\t".join(_flat(cell.text) for cell in row.cells)
        else:
            yield block.text


def _xlsx(path):
    import openpyxl

    workbook = openpyxl.load_workbook(path, read_only=True)
    for sheet in workbook.worksheets:
        yield f"## Sheet: {sheet.title}"
        for row in sheet.iter_rows(values_only=True):
            yield "\t".join("" if value is None else _flat(value) for value in row)


def _shapes(shapes):
    for shape in shapes:
        if hasattr(shape, "shapes"):  # a group
            yield from _shapes(shape.shapes)
        else:
            yield shape


def _pptx(path):
    import pptx

    for number, slide in enumerate(pptx.Presentation(path).slides, 1):
        yield f"## Slide {number}"
        for shape in _shapes(slide.shapes):
            if shape.has_text_frame:
                yield shape.text_frame.text
            elif getattr(shape, "has_table", False):
                for row in shape.table.rows:
                    yield "\t".join(_flat(cell.text) for cell in row.cells)
            elif getattr(shape, "has_chart", False):
                yield f"(chart: {', '.join(_flat(series.name) for series in shape.chart.plots[0].series)})"
        if slide.has_notes_slide:
            yield f"Notes: {slide.notes_slide.notes_text_frame.text}"


def main():
    path = sys.argv[1]
    for line in {"docx": _docx, "xlsx": _xlsx, "pptx": _pptx}[path.rsplit(".", 1)[-1].lower()](path):
        print(line)


if __name__ == "__main__":
    main()
