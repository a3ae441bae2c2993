"""The office libraries, which a launcher imports and uses once, so that no run has to.

Templates are parsed, patterns compiled, pages of libraries read.
"""

import datetime
import io
import os
import sys
import tempfile

import check
import docx
import docx.shared
import openpyxl
import openpyxl.chart
import openpyxl.styles
import PIL.Image
import pptx
import pptx.chart.data
import pptx.enum.chart
import pptx.util
import preload_plain
import xlsxwriter

# fmt: off
_ALSO = (
    "base64", "copy", "dataclasses", "decimal", "random", "statistics", "textwrap", "unicodedata", "zipfile",
    "docx.enum.section", "docx.enum.style", "docx.enum.table", "docx.enum.text", "docx.oxml", "docx.oxml.ns", "lxml.etree",
    "openpyxl.chart.label", "openpyxl.chart.series", "openpyxl.comments", "openpyxl.drawing.image", "openpyxl.formatting.rule",
    "openpyxl.utils", "openpyxl.worksheet.datavalidation", "openpyxl.worksheet.table", "PIL.ImageDraw", "PIL.ImageFont",
    "pptx.dml.color", "pptx.enum.shapes", "pptx.enum.text",
)
# fmt: on


def preload():
    """Build one small document of each kind in memory."""
    preload_plain.preload()
    for name in _ALSO:
        __import__(name)
    picture = io.BytesIO()
    PIL.Image.new("RGB", (8, 8)).save(picture, "PNG")
    for build in (_word, _slides, _workbook, _xlsxwriter):
        build(picture)
    sys.modules.pop("check")  # a script may have a file of this name
    tempfile.tempdir = None  # as in an interpreter that has not asked yet


def _word(picture):
    document = docx.Document()
    document.add_heading("x", 1)
    table = document.add_table(rows=2, cols=2, style="Table Grid")
    table.rows[0].cells[0].text = "x"
    document.add_picture(picture, docx.shared.Cm(1))
    _checked(document.save, "docx", docx.Document)


def _slides(picture):
    deck = pptx.Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[5])
    slide.shapes.title.text = "x"
    data = pptx.chart.data.CategoryChartData()
    data.categories = ["a", "b"]
    data.add_series("s", (1, 2.5))
    box = [pptx.util.Inches(1)] * 4
    slide.shapes.add_chart(pptx.enum.chart.XL_CHART_TYPE.COLUMN_CLUSTERED, *box, data)
    slide.shapes.add_table(2, 2, *box).table.cell(0, 0).text = "x"
    slide.shapes.add_picture(picture, *box)
    _checked(deck.save, "pptx", pptx.Presentation)


def _workbook(_):
    for write_only in (False, True):
        book = openpyxl.Workbook(write_only=write_only)
        sheet = book.create_sheet("x")
        sheet.append(["a", 1, 1.5, True, datetime.date(2020, 1, 1), None, "=1+1"])
        if not write_only:
            sheet["A1"].font = openpyxl.styles.Font(bold=True)
            chart = openpyxl.chart.BarChart()
            chart.add_data(openpyxl.chart.Reference(sheet, min_col=2, min_row=1, max_row=1))
            sheet.add_chart(chart, "A3")
        _checked(book.save, "xlsx", openpyxl.load_workbook)


def _xlsxwriter(_):
    target = io.BytesIO()
    with xlsxwriter.Workbook(target, {"in_memory": True}) as book:
        book.add_worksheet().write_row(0, 0, ["a", 1])


def _checked(save, kind, load):
    path = f"/tmp/rehearsal.{kind}"
    save(path)
    load(path)
    result = check.check(path)
    os.unlink(path)
    if not result["ok"]:
        raise RuntimeError(f"the check of a document at the start: {result}")
