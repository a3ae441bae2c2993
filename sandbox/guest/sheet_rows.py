"""Writes the rows of a workbook's sheet as JSON. Usage: python sheet_rows.py WORKBOOK OUTPUT [SHEET]

`{"sheet": …, "columns": […], "rows": […]}`, numbers as they are written in the workbook, dates as ISO 8601, formulas by their
last value, one row a line. Runs in a jail: standard library only, and streams, since a workbook may be large.
"""

import json
import re
import sys
import zipfile
from datetime import datetime, timedelta
from math import isfinite
from xml.parsers import expat

_ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NOT_A_DATE = re.compile(r'"[^"]*"|\\.|_.|\[(?!h+\]|m+\]|s+\])[^\]]*\]')
_BUILT_IN_DATES = {*range(14, 23), *range(45, 48)}
_EXACT_DIGITS = 15  # what Excel shows; it writes doubles with 17
_EPOCH = datetime(1899, 12, 30)  # noqa: DTZ001  Excel has no time zones
_EPOCH_1904 = datetime(1904, 1, 1)  # noqa: DTZ001
_MAX_COLUMNS = 16_384
_CHUNK_BYTES = 1 << 16


class Stop(Exception):
    """What is wrong with the workbook, for the one who asked."""


def main():
    path, output, *wanted = sys.argv[1:]
    try:
        with zipfile.ZipFile(path) as archive:
            write(archive, output, wanted[0] if wanted else None)
    except (Stop, zipfile.BadZipFile, ArithmeticError, LookupError, TypeError, ValueError, expat.ExpatError) as fault:
        sys.exit(f"It can't be read as a workbook: {fault}")


def write(archive, output, wanted):
    name, part, is_1904 = find_sheet(archive, wanted)
    names = set(archive.namelist())
    strings = shared_strings(archive) if "xl/sharedStrings.xml" in names else []
    dates = date_styles(archive) if "xl/styles.xml" in names else {}
    with open(output, "w", encoding="utf-8") as file:
        header, empty = None, 0
        for row in rows_of(archive, part, strings, dates, is_1904):
            cells = ["null" if cell is None else cell for cell in row]
            if header is None:
                if all(cell is None for cell in row):
                    continue
                header = [json.loads(cell) if cell[0] == '"' else "" if cell == "null" else cell for cell in cells]
                file.write(f'{{"sheet": {json.dumps(name)}, "columns": {json.dumps(header)}, "rows": [')
                separator = "\n"
                continue
            if all(cell is None for cell in row):
                empty += 1  # told only if a row follows: formats reach further down than values
                continue
            for _ in range(empty):
                file.write(f"{separator}[{', '.join(['null'] * len(header))}]")
                separator = ",\n"
            empty = 0
            cells += ["null"] * (len(header) - len(cells))
            file.write(f"{separator}[{', '.join(cells)}]")
            separator = ",\n"
        if header is None:
            file.write(f'{{"sheet": {json.dumps(name)}, "columns": [], "rows": [')
        file.write("\n]}\n")


def parse(archive, part, start=None, end=None, text=None):
    """Feed a part to handlers, local names and attributes without namespaces."""
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True

    def local(name):
        return name.rpartition(" ")[2]

    def refuse(*_):
        raise Stop("it declares entities")

    parser.EntityDeclHandler = refuse
    if start:
        parser.StartElementHandler = lambda name, attributes: start(
            local(name), {local(k): v for k, v in attributes.items()}
        )
    if end:
        parser.EndElementHandler = lambda name: end(local(name))
    if text:
        parser.CharacterDataHandler = text
    with archive.open(part) as file:
        while chunk := file.read(_CHUNK_BYTES):
            parser.Parse(chunk)
            yield
        parser.Parse(b"", True)
        yield


def read(*arguments):
    for _ in parse(*arguments):
        pass


def find_sheet(archive, wanted):
    targets, sheets, is_1904 = {}, [], False

    def relation(name, attributes):
        if name == "Relationship" and attributes.get("Type", "").endswith("/worksheet"):
            targets[attributes["Id"]] = attributes["Target"]

    def sheet(name, attributes):
        nonlocal is_1904
        if name == "sheet":
            sheets.append((attributes["name"], attributes.get("id")))
        elif name == "workbookPr":
            is_1904 = attributes.get("date1904") in ("1", "true")

    read(archive, "xl/_rels/workbook.xml.rels", relation)
    read(archive, "xl/workbook.xml", sheet)
    there = [(name, targets[key]) for name, key in sheets if key in targets]
    print(json.dumps([name for name, _ in there]))
    for name, target in there:
        if wanted in (None, name):
            return name, target.lstrip("/") if target.startswith("/") else f"xl/{target}", is_1904
    names = ", ".join(name[:40] for name, _ in there[:30])
    raise Stop(f"there is no sheet {wanted[:40]!r}; there are: {names}")


def shared_strings(archive):
    strings, parts, is_text, phonetic = [], [], False, 0

    def start(name, _):
        nonlocal is_text, phonetic
        if name == "rPh":
            phonetic += 1
        is_text = name == "t" and not phonetic

    def end(name):
        nonlocal is_text, phonetic
        is_text = False
        if name == "rPh":
            phonetic -= 1
        elif name == "si":
            strings.append(unescaped("".join(parts)))
            parts.clear()

    read(archive, "xl/sharedStrings.xml", start, end, lambda text: parts.append(text) if is_text else None)
    return strings


def date_styles(archive):
    """How a number is shown by the cell formats that show a date, a time or a duration, by their positions."""
    codes, found, position, inside = {}, {}, 0, False

    def start(name, attributes):
        nonlocal position, inside
        if name == "numFmt":
            codes[attributes["numFmtId"]] = attributes["formatCode"]
        elif name == "cellXfs":
            inside = True
        elif name == "xf" and inside:
            number = attributes.get("numFmtId", "0")
            code = _NOT_A_DATE.sub("", codes.get(number, "")).lower()
            if "[" in code or number == "46":
                found[str(position)] = duration_of
            elif int(number) in _BUILT_IN_DATES or any(letter in code for letter in "ymdhs"):
                found[str(position)] = date_of
            position += 1

    def end(name):
        nonlocal inside
        if name == "cellXfs":
            inside = False

    read(archive, "xl/styles.xml", start, end)
    return found


def rows_of(archive, part, strings, dates, is_1904):
    """The rows, each a list of JSON texts, None where there is no cell."""
    done, row, parts = [], None, []
    kind = style = None
    column = 0
    takes = None

    def start(name, attributes):
        nonlocal row, kind, style, column, takes
        if name == "row":
            row = []
        elif name == "c":
            kind, style = attributes.get("t", "n"), attributes.get("s", "0")
            column = column_of(attributes["r"]) if "r" in attributes else len(row)
            parts.clear()
        elif name in ("v", "t"):
            takes = name

    def end(name):
        nonlocal takes
        if name in ("v", "t"):
            takes = None
        elif name == "c" and (parts or kind == "inlineStr"):
            row.extend([None] * (column + 1 - len(row)))
            row[column] = cell("".join(parts))
        elif name == "row":
            done.append(row)

    def cell(text):
        if kind == "s":
            return json.dumps(strings[int(text)])
        if kind == "b":
            return "true" if text == "1" else "false"
        if kind != "n":
            return json.dumps(unescaped(text))
        if style in dates:
            return json.dumps(dates[style](text, is_1904))
        return number_of(text)

    for _ in parse(archive, part, start, end, lambda text: parts.append(text) if takes else None):
        yield from done
        done.clear()


def column_of(reference):
    index = 0
    for letter in reference:
        if not letter.isalpha():
            break
        index = index * 26 + ord(letter) - 64
        if index > _MAX_COLUMNS:
            raise Stop(f"it has a cell at {reference[:20]}, beyond the last column of a sheet")
    return index - 1


def number_of(text):
    """As it is written, but for the digits beyond those that Excel shows."""
    if not _NUMBER.fullmatch(text):
        return json.dumps(text)
    mantissa = re.split("[eE]", text)[0].replace(".", "").lstrip("-0")
    if len(mantissa) > _EXACT_DIGITS and isfinite(float(text)):
        return f"{float(text):.{_EXACT_DIGITS}g}".replace("e+", "E+").replace("e-", "E-")
    return text


def date_of(text, is_1904):
    """A day, a time, or both, to the millisecond, which is all that a serial number keeps."""
    days = float(text)
    if not is_1904 and 1 <= days < 60:
        days += 1  # Excel counts a 29 February 1900
    milliseconds = round(days * 86_400_000)
    try:
        moment = (_EPOCH_1904 if is_1904 else _EPOCH) + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return text
    if 0 <= days < 1 and not is_1904:
        return moment.time().isoformat()
    return moment.isoformat(" ").removesuffix(" 00:00:00")


def duration_of(text, _):
    """Hours, minutes and seconds, as `[h]:mm:ss` shows them."""
    seconds = round(float(text) * 86_400)
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    return f"{sign}{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def unescaped(text):
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


if __name__ == "__main__":
    main()
