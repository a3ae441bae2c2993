"""Builds a Word report, a slide deck and a workbook on ISO codes: the script that a model writes in the demo.

It runs in the sandbox. The rows are files under data/, read by path: none of them is in this text, so none was typed.
"""

import json
from collections import Counter
from io import BytesIO
from pathlib import Path

from docx import Document
from docx.oxml import OxmlElement
from docx.shared import Cm, Pt
from openpyxl import Workbook
from openpyxl.cell import WriteOnlyCell
from openpyxl.chart import BarChart, Reference
from openpyxl.chart.label import DataLabelList
from openpyxl.styles import Font, PatternFill
from openpyxl.utils import get_column_letter
from PIL import Image, ImageDraw, ImageFont
from pptx import Presentation
from pptx.chart.data import CategoryChartData
from pptx.dml.color import RGBColor
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

TITLE, BLUE, WHITE = "Countries and languages in ISO codes", "1F4E79", "FFFFFF"


def load(name):
    return json.loads(Path(f"data/{name}.json").read_text(encoding="utf-8"))


COUNTRIES, SUBDIVISIONS, LANGUAGES = load("countries"), load("subdivisions"), load("languages")
PARTS = Counter(row["code"].partition("-")[0] for row in SUBDIVISIONS)  # by country
KINDS = Counter(row["type"] for row in SUBDIVISIONS)
LEADING = sorted(COUNTRIES, key=lambda row: (-PARTS[row["alpha_2"]], row["name"]))[:12]


def findings():
    """What the data say, a paragraph each."""
    living, extinct = (sum(row["type"] == kind for row in LANGUAGES) for kind in "LE")
    short = sum(row["alpha_2"] is not None for row in LANGUAGES)
    most, (kind, times) = LEADING[0], KINDS.most_common(1)[0]
    yield (
        f"ISO 639-3 lists {len(LANGUAGES):,} languages, {living:,} of them living and {extinct:,} extinct. "
        f"Only {short} have a two-letter code."
    )
    yield (
        f"ISO 3166-2 divides {len(PARTS)} of {len(COUNTRIES)} countries into {len(SUBDIVISIONS):,} parts. "
        f"{most['name']} has most, {PARTS[most['alpha_2']]}. The commonest kind is {kind}, {times:,} times."
    )


def build_document(path):
    """Word: findings, a picture, and a table of all countries."""
    document = Document()
    page = document.sections[0]
    page.page_width, page.page_height, page.left_margin, page.right_margin = Cm(21), Cm(29.7), Cm(2), Cm(2)
    cell_style = document.styles.add_style("Cell", 1)
    cell_style.font.size, cell_style.paragraph_format.space_after = Pt(9), Pt(0)
    document.add_heading(TITLE, level=0)
    document.add_heading("Findings", level=1)
    for paragraph in findings():
        document.add_paragraph(paragraph)
    document.add_heading("Subdivisions by kind", level=1)
    document.add_picture(draw_bars(KINDS.most_common(12)), width=Cm(17))
    document.add_page_break()
    document.add_heading(f"All {len(COUNTRIES)} countries", level=1)
    table = document.add_table(rows=len(COUNTRIES) + 1, cols=6, style="Light List Accent 1")
    table.autofit = False
    table.rows[0]._tr.get_or_add_trPr().append(OxmlElement("w:tblHeader"))  # repeated on each page
    rows = [("Alpha-2", "Alpha-3", "Numeric", "Flag", "Name", "Subdivisions")]
    for country in COUNTRIES:
        codes = country["alpha_2"], country["alpha_3"], country["numeric"]
        rows.append((*codes, country["flag"], country["name"], str(PARTS[country["alpha_2"]])))
    for row, values in zip(table.rows, rows, strict=True):
        for cell, width, value in zip(row.cells, (1.8, 1.8, 1.9, 1.3, 7.6, 2.6), values, strict=True):
            cell.width, cell.text = Cm(width), value
            cell.paragraphs[0].style = cell_style
    document.save(path)


def draw_bars(counts):
    """A horizontal bar chart as a PNG; Pillow's own font has the letters of ASCII."""
    font, left, step = ImageFont.load_default(28), 480, 60
    image = Image.new("RGB", (1800, step * len(counts)), "white")
    draw = ImageDraw.Draw(image)
    for number, (label, count) in enumerate(counts):
        y, right = step * number + step // 2, left + 1200 * count // counts[0][1]
        draw.text((left - 20, y), label, "#333333", font, anchor="rm")
        draw.rectangle((left, y - 20, right, y + 20), f"#{BLUE}")
        draw.text((right + 14, y), f"{count:,}", "#333333", font, anchor="lm")
    file = BytesIO()
    image.save(file, "PNG")
    return file


def build_slides(path):
    """PowerPoint: a title, a native chart, and a table."""
    deck = Presentation()
    deck.slide_width, deck.slide_height = Inches(13.333), Inches(7.5)
    cover = add_slide(deck, TITLE, top=2, size=44, color=WHITE)
    cover.background.fill.solid()
    cover.background.fill.fore_color.rgb = RGBColor.from_string(BLUE)
    write(cover.shapes.add_textbox(*area(3.6, 2)), "\n".join(findings()), size=20, color=WHITE)

    numbers = CategoryChartData()
    numbers.categories = [row["name"] for row in LEADING]
    numbers.add_series("Subdivisions", [PARTS[row["alpha_2"]] for row in LEADING])
    slide = add_slide(deck, f"The {len(LEADING)} countries with most subdivisions")
    chart = slide.shapes.add_chart(XL_CHART_TYPE.BAR_CLUSTERED, *area(1.4, 5.7), numbers).chart
    chart.has_legend, chart.has_title = False, False
    chart.category_axis.reverse_order = True  # the first on top
    chart.value_axis.visible, chart.value_axis.has_major_gridlines = False, False
    chart.plots[0].gap_width, chart.plots[0].has_data_labels = 40, True
    chart.series[0].format.fill.solid()
    chart.series[0].format.fill.fore_color.rgb = RGBColor.from_string(BLUE)
    chart.font.size = Pt(14)

    rows = [("Alpha-2", "Alpha-3", "Numeric", "Name", "Subdivisions")]
    for row in LEADING:
        rows.append((row["alpha_2"], row["alpha_3"], row["numeric"], row["name"], str(PARTS[row["alpha_2"]])))
    slide = add_slide(deck, "Their codes")
    table = slide.shapes.add_table(len(rows), 5, *area(1.4, 0.42 * len(rows))).table
    for column, width in zip(table.columns, (1.6, 1.6, 1.6, 4.7, 2.4), strict=True):
        column.width = Inches(width)
    for row, values in zip(table.rows, rows, strict=True):
        for cell, value in zip(row.cells, values, strict=True):
            write(cell, value, size=14, color=WHITE if values is rows[0] else "333333")
    deck.save(path)


def area(top, height):
    return Inches(0.7), Inches(top), Inches(11.9), Inches(height)


def add_slide(deck, title, *, top=0.4, size=32, color=BLUE):
    slide = deck.slides.add_slide(deck.slide_layouts[5])
    shape = slide.shapes.title
    shape.left, shape.top, shape.width, shape.height = area(top, 1)
    write(shape, title, size=size, color=color)
    return slide


def write(shape, text, *, size, color="333333"):
    shape.text_frame.text, shape.text_frame.word_wrap = text, True
    for paragraph in shape.text_frame.paragraphs:
        paragraph.alignment, paragraph.font.size = 1, Pt(size)
        paragraph.font.color.rgb = RGBColor.from_string(color)


def build_workbook(path):
    """Excel: a summary with a native chart, and a sheet for each list."""
    book = Workbook(write_only=True)
    summary = book.create_sheet("Summary")
    summary.column_dimensions["A"].width, summary.column_dimensions["B"].width = 24, 14
    summary.append(text_cells(summary, ["Country", "Subdivisions"], header=True))
    for row in LEADING:
        summary.append([*text_cells(summary, [row["name"]]), PARTS[row["alpha_2"]]])
    chart = BarChart()
    chart.type, chart.title, chart.legend, chart.gapWidth = "bar", "Subdivisions", None, 40
    chart.width, chart.height = 24, 12
    last = len(LEADING) + 1
    chart.add_data(Reference(summary, min_col=2, min_row=2, max_row=last))
    chart.set_categories(Reference(summary, min_col=1, min_row=2, max_row=last))
    chart.x_axis.scaling.orientation, chart.x_axis.delete, chart.y_axis.delete = "maxMin", False, True
    chart.series[0].graphicalProperties.solidFill = BLUE
    chart.dataLabels = DataLabelList(showVal=True)
    summary.add_chart(chart, "D2")
    for name, rows in (("Countries", COUNTRIES), ("Subdivisions", SUBDIVISIONS), ("Languages", LANGUAGES)):
        add_list(book.create_sheet(name), rows)
    book.save(path)


def add_list(sheet, rows):
    """Every record, under a header that stays in sight and filters."""
    columns = list(rows[0])
    for number, column in enumerate(columns, 1):
        longest = max(len(row[column] or "") for row in rows)
        sheet.column_dimensions[get_column_letter(number)].width = max(longest, len(column)) + 4
    sheet.freeze_panes = "A2"
    sheet.auto_filter.ref = f"A1:{get_column_letter(len(columns))}{len(rows) + 1}"
    sheet.append(text_cells(sheet, columns, header=True))
    for row in rows:
        sheet.append(text_cells(sheet, row.values()))


def text_cells(sheet, values, *, header=False):
    """Cells that are text whatever they look like ("004", "NA", "=A1"); null is no cell."""
    for value in values:
        cell = None if value is None else WriteOnlyCell(sheet, value)
        if cell is not None:
            cell.data_type, cell.number_format = "s", "@"
            if header:
                cell.font, cell.fill = Font(bold=True, color=WHITE), PatternFill("solid", BLUE)
        yield cell


def main():
    print(f"read {len(LANGUAGES):,} languages, {len(SUBDIVISIONS):,} subdivisions, {len(COUNTRIES)} countries")
    Path("reports").mkdir(exist_ok=True)
    for build, path in (
        (build_document, "reports/iso.docx"),
        (build_slides, "reports/iso.pptx"),
        (build_workbook, "reports/iso.xlsx"),
    ):
        build(path)
        print(f"built {path}, {Path(path).stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
