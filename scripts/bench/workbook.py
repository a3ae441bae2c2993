"""A tool result of 321 rows becomes an Excel file: what an agent is asked for most."""

import json
import time

import openpyxl

with open("results/0001-rows.json", encoding="utf-8") as file:
    rows = json.load(file)
workbook = openpyxl.Workbook()
sheet = workbook.active
sheet.append(list(rows[0]))
for row in rows:
    sheet.append(list(row.values()))
sheet.append([f"made at {time.time_ns()}"])  # no two runs write the same file
workbook.save("rows.xlsx")
print(len(rows), "rows")
