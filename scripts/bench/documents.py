"""Three documents with a chart each in two of them: what an agent's report script typically does."""

import json
import time

import docx
import openpyxl
import pptx
from openpyxl.chart import BarChart, Reference
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

with open("results/0001-rows.json", encoding="utf-8") as file:
    rows = json.load(file)
names = list(rows[0])

workbook = openpyxl.Workbook()
sheet = workbook.active
sheet.append(names)
sheet["Z1"] = f"made at {time.time_ns()}"
for row in rows:
    sheet.append([row[name] for name in names])
chart = BarChart()
chart.add_data(Reference(sheet, min_col=3, min_row=1, max_row=20), titles_from_data=True)
sheet.add_chart(chart, "H2")
workbook.save("report.xlsx")

document = docx.Document()
document.add_heading(f"Report, made at {time.time_ns()}")  # no two runs write the same file
table = document.add_table(1, len(names))
for cell, name in zip(table.rows[0].cells, names, strict=True):
    cell.text = name
for row in rows[:60]:
    for cell, name in zip(table.add_row().cells, names, strict=True):
        cell.text = str(row[name])
document.save("report.docx")

deck = pptx.Presentation()
slide = deck.slides.add_slide(deck.slide_layouts[5])
slide.shapes.title.text = f"Report, made at {time.time_ns()}"
data = CategoryChartData()
data.categories = [str(row[names[0]]) for row in rows[:8]]
data.add_series("value", [row[names[2]] for row in rows[:8]])
slide.shapes.add_chart(XL_CHART_TYPE.COLUMN_CLUSTERED, Inches(1), Inches(2), Inches(8), Inches(4), data)
deck.save("report.pptx")
print(len(rows), "rows")
