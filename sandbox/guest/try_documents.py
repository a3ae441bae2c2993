"""Builds one document of each kind with the guest's libraries: the self-test of `spillbox setup`."""

import docx
import openpyxl
import pptx
import xlsxwriter
from lxml import etree
from PIL import Image


def main():
    Image.new("RGB", (8, 8), "navy").save("picture.png")
    workbook = openpyxl.Workbook()
    workbook.active.append(["library", "lxml", str(etree.LXML_VERSION)])
    workbook.save("openpyxl.xlsx")
    with xlsxwriter.Workbook("xlsxwriter.xlsx") as writer:
        writer.add_worksheet("Sheet").write_string(0, 0, "007")
    document = docx.Document()
    document.add_heading("A report")
    document.add_picture("picture.png")
    document.save("python-docx.docx")
    deck = pptx.Presentation()
    deck.slides.add_slide(deck.slide_layouts[5]).shapes.add_picture("picture.png", 0, 0)
    deck.save("python-pptx.pptx")


if __name__ == "__main__":
    main()
