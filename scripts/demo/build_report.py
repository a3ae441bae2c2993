"""Builds a Word report, slides and a workbook on the ISO codes: the script that a model writes in the demo.

It runs in the sandbox. The rows are results of tools, in files under results/: none is in this text, so none was typed.
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
from pptx.enum.text import MSO_ANCHOR, PP_ALIGN
from pptx.util import Inches

TITLE = "Countries and languages in ISO codes"
HEADER = ("Alpha-2", "Alpha-3", "Numeric", "Flag", "Name", "Subdivisions")
BLUE, GRAY, WHITE = "1F4E79", "333333", "FFFFFF"


def load(name):
    (path,) = Path("results").glob(f"*-{name}.json")
    return json.loads(path.read_text(encoding="utf-8"))


COUNTRIES, SUBDIVISIONS, LANGUAGES = load("countries"), load("subdivisions"), load("languages")
PARTS = Counter(row["code"].partition("-")[0] for row in SUBDIVISIONS)
KINDS = Counter(row["type"] for row in SUBDIVISIONS)
LEADING = sorted(COUNTRIES, key=lambda row: (-PARTS[row["alpha_2"]], row["name"]))[:12]


def findings():
    """What the data say, a paragraph each."""
    living, extinct = (sum(row["type"] == kind for row in LANGUAGES) for kind in "LE")
    short = sum(row["alpha_2"] is not None for row in LANGUAGES)
    most, (kind, times) = LEADING[0], KINDS.most_common(1)[0]
    return [
        f"ISO 639-3 lists {len(LANGUAGES):,} languages, {living:,} of them living and {extinct:,} extinct. "
        f"Only {short} have a two-letter code.",
        f"ISO 3166-2 divides {len(PARTS)} of {len(COUNTRIES)} countries into {len(SUBDIVISIONS):,} parts. "
        f"{most['name']} has most, {PARTS[most['alpha_2']]}. The commonest kind is {kind}, {times:,} times.",
    ]


def table_of(countries):
    """The header, and a row of texts for each country."""
    yield HEADER
    for country in countries:
        codes = country["alpha_2"], country["alpha_3"], country["numeric"]
        yield *codes, country["flag"], country["name"], str(PARTS[country["alpha_2"]])


def build_document(path):
    """Word: findings, a picture, and a table of all countries."""
    document = Document()
    document.styles["Normal"].font.name = "Calibri"
    document.add_heading(TITLE, level=0)
    document.add_heading("Findings", level=1)
    for paragraph in findings():
        document.add_paragraph(paragraph)
    document.add_heading("Subdivisions by kind", level=1)
    document.add_picture(draw_bars(KINDS.most_common(12)), width=Cm(15.2))
    document.add_heading(f"All {len(COUNTRIES)} countries", level=1)
    small = document.styles["No Spacing"]
    small.font.name, small.font.size = "Calibri", Pt(9)
    table = document.add_table(rows=len(COUNTRIES) + 1, cols=len(HEADER), style="Light List Accent 1")
    table.rows[0]._tr.get_or_add_trPr().append(OxmlElement("w:tblHeader"))  # it is repeated on each page
    for column, width in zip(table.columns, (1.7, 1.7, 1.8, 1.2, 6.4, 2.4), strict=True):
        column.width = Cm(width)
    for row, values in zip(table.rows, table_of(COUNTRIES), strict=True):
        for cell, column, value in zip(row.cells, table.columns, values, strict=True):
            cell.width, cell.text, cell.paragraphs[0].style = column.width, value, small
    document.save(path)


def draw_bars(counts):
    """A bar chart as a PNG. Pillow's own font draws the letters of ASCII, which these labels are."""
    font, left, step = ImageFont.load_default(34), 420, 60
    image = Image.new("RGB", (1600, step * len(counts)), "white")
    draw = ImageDraw.Draw(image)
    for place, (label, count) in enumerate(counts):
        middle, right = step * place + step // 2, left + 1060 * count // counts[0][1]
        draw.text((left - 20, middle), label, f"#{GRAY}", font, anchor="rm")
        draw.rectangle((left, middle - 20, right, middle + 20), f"#{BLUE}")
        draw.text((right + 14, middle), f"{count:,}", f"#{GRAY}", font, anchor="lm")
    file = BytesIO()
    image.save(file, "PNG")
    return file


def build_slides(path):
    """PowerPoint: a title, a native chart, and a table."""
    deck = Presentation()
    deck.slide_width, deck.slide_height = Inches(13.333), Inches(7.5)
    cover = add_slide(deck, TITLE, top=1.8, size=44, color=WHITE)
    cover.background.fill.solid()
    cover.background.fill.fore_color.rgb = RGBColor.from_string(BLUE)
    write(cover.shapes.add_textbox(*area(3.2, 2)), "\n".join(findings()), size=20, color=WHITE)

    numbers = CategoryChartData()
    numbers.categories = [country["name"] for country in LEADING]
    numbers.add_series("Subdivisions", [PARTS[country["alpha_2"]] for country in LEADING])
    slide = add_slide(deck, f"The {len(LEADING)} countries with most subdivisions")
    chart = slide.shapes.add_chart(XL_CHART_TYPE.BAR_CLUSTERED, *area(1.4, 5.7), numbers).chart
    chart.has_legend = chart.has_title = chart.value_axis.visible = chart.value_axis.has_major_gridlines = False
    chart.category_axis.reverse_order = chart.plots[0].has_data_labels = True
    chart.plots[0].gap_width, chart.font.size = 40, Pt(14)
    chart.series[0].format.fill.solid()
    chart.series[0].format.fill.fore_color.rgb = RGBColor.from_string(BLUE)

    slide = add_slide(deck, "Their codes")
    table = slide.shapes.add_table(len(LEADING) + 1, len(HEADER), *area(1.4, 5.5)).table
    for column, width in zip(table.columns, (1.5, 1.5, 1.5, 1.2, 4.2, 2), strict=True):
        column.width = Inches(width)
    for row, values in zip(table.rows, table_of(LEADING), strict=True):
        for cell, value in zip(row.cells, values, strict=True):
            write(cell, value, size=14, color=WHITE if values is HEADER else GRAY)
            cell.vertical_anchor = MSO_ANCHOR.MIDDLE
    deck.save(path)


def add_slide(deck, title, *, top=0.4, size=32, color=BLUE):
    slide = deck.slides.add_slide(deck.slide_layouts[5])
    shape = slide.shapes.title
    shape.left, shape.top, shape.width, shape.height = area(top, 0.9)
    write(shape, title, size=size, color=color)
    return slide


def area(top, height):
    return Inches(0.7), Inches(top), Inches(11.9), Inches(height)


def write(shape, text, *, size, color):
    shape.text_frame.text, shape.text_frame.word_wrap = text, True
    for paragraph in shape.text_frame.paragraphs:
        paragraph.alignment, paragraph.font.size, paragraph.space_after = PP_ALIGN.LEFT, Pt(size), Pt(size // 3)
        paragraph.font.color.rgb = RGBColor.from_string(color)


def build_workbook(path):
    """Excel: a summary with a native chart, and a sheet for each list."""
    book = Workbook(write_only=True)
    summary = book.create_sheet("Summary")
    summary.column_dimensions["A"].width, summary.column_dimensions["B"].width = 24, 14
    summary.append(text_cells(summary, ("Country", "Subdivisions"), header=True))
    for country in LEADING:
        summary.append([*text_cells(summary, [country["name"]]), PARTS[country["alpha_2"]]])
    chart = BarChart(barDir="bar", gapWidth=40)
    chart.add_data(Reference(summary, min_col=2, min_row=1, max_row=len(LEADING) + 1), titles_from_data=True)
    chart.set_categories(Reference(summary, min_col=1, min_row=2, max_row=len(LEADING) + 1))
    chart.series[0].graphicalProperties.solidFill = BLUE
    chart.dataLabels = DataLabelList(showVal=True, showSerName=False, showCatName=False, showLegendKey=False)
    chart.x_axis.scaling.orientation, chart.x_axis.delete, chart.y_axis.delete = "maxMin", False, True
    chart.y_axis.majorGridlines = chart.legend = None
    chart.title, chart.width, chart.height = "Countries with most subdivisions", 22, 12
    summary.add_chart(chart, "D1")
    for title, rows in (("Countries", COUNTRIES), ("Subdivisions", SUBDIVISIONS), ("Languages", LANGUAGES)):
        add_list(book.create_sheet(title), rows)
    book.save(path)


def add_list(sheet, rows):
    """Every record, under a header that stays in sight and filters."""
    columns = list(rows[0])
    for number, name in enumerate(columns, 1):
        longest = max(len(row[name] or "") for row in rows)
        sheet.column_dimensions[get_column_letter(number)].width = max(longest, len(name)) + 4
    sheet.freeze_panes = "A2"
    sheet.auto_filter.ref = f"A1:{get_column_letter(len(columns))}{len(rows) + 1}"
    sheet.append(text_cells(sheet, columns, header=True))
    for row in rows:
        sheet.append(text_cells(sheet, row.values()))


def text_cells(sheet, values, *, header=False):
    """Cells that are text whatever they look like ("004", "NA", "=A1"); null is no cell."""
    for value in values:
        cell = None if value is None else WriteOnlyCell(sheet, value)
        if cell:
            cell.data_type, cell.number_format = "s", "@"
        if header:
            cell.font, cell.fill = Font("Calibri", bold=True, color=WHITE), PatternFill("solid", BLUE)
        yield cell


for build, path in (
    (build_document, "reports/iso.docx"),
    (build_slides, "reports/iso.pptx"),
    (build_workbook, "reports/iso.xlsx"),
):
    Path(path).parent.mkdir(exist_ok=True)
    build(path)
    print(f"built {path}, {Path(path).stat().st_size:,} bytes", flush=True)
