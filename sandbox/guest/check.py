"""Re-opens documents and says what is wrong with them. Usage: python check.py PATH …; prints a JSON list.

Runs in a jail, over what the script left once nothing of it lives, or over copies. First the package itself (ECMA-376 part 2,
the open packaging conventions): archive, content types, relationships; then the library that an agent would use to open it.
"""

import csv
import io
import json
import posixpath
import re
import sys
import zipfile
from urllib.parse import unquote
from xml.parsers import expat

_MAX_UNPACKED_BYTES = 1 << 30
_MAX_LOOKED_AT_SHEET_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20
_RELATIONSHIPS = "http://schemas.openxmlformats.org/package/2006/relationships"
_SHEETS = "xl/worksheets/"
_PLACES = re.compile(r"^([A-Z]{1,3})([1-9][0-9]{0,6})$", re.MULTILINE)
_ROW = re.compile(rb'<row\b[^>]*\br="(\d{1,7})"')
_CONTENT_TYPES = "[Content_Types].xml"
_MAIN_TYPES = {
    "xlsx": ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml",),
    "docx": ("application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml",),
    "pptx": ("application/vnd.openxmlformats-officedocument.presentationml.presentation.main+xml",),
}


class Unusual(Exception):
    """A document that is whole as far as one can tell, but not what it is expected to be."""


class Broken(Exception):
    """A document that a reader would refuse or repair; the message names the part."""


def check(path):
    """One document's result: the fields of `sandbox.job.DocumentCheck` but for its path."""
    kind = path.rsplit(".", 1)[-1].lower()
    result = {"format": kind, "ok": True}
    try:
        with open(path, "rb") as file:
            if not file.read(1):
                raise Broken("the file is empty")
        result.update(_check_csv(path) if kind == "csv" else _check_office(path, kind))
    except Unusual as fault:
        result.update(ok=None, problem=str(fault))
    except Broken as fault:
        result.update(ok=False, problem=str(fault))
    except MemoryError:
        result.update(ok=None, problem="it is too large to be opened within the memory of a run")
    except Exception as fault:  # whatever a library raises over a hostile file
        result.update(ok=False, problem=f"it can't be opened: {type(fault).__name__}: {str(fault)[:300]}")
    return result


def _check_csv(path):
    csv.field_size_limit(sys.maxsize)
    rows = columns = 0
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            for row in csv.reader(file, strict=True):
                rows += 1
                columns = max(columns, len(row))
    except UnicodeDecodeError as fault:
        raise Unusual(f"it is not UTF-8 ({fault.reason}), which is what programs expect of a CSV file") from None
    except csv.Error as fault:
        raise Broken(f"record {rows + 1} is not valid CSV: {fault}") from None
    return {"rows": rows, "columns": columns}


def _check_office(path, kind):
    try:
        with zipfile.ZipFile(path) as archive:
            facts = _check_package(archive, kind)
    except zipfile.BadZipFile as fault:
        raise Broken(f"it is not a whole zip archive: {fault}") from None
    return {"xlsx": _open_xlsx, "docx": _open_docx, "pptx": _open_pptx}[kind](path, *facts)


def _check_package(archive, kind):
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    seen = {}
    for entry in entries:
        if entry.filename.lower() in seen:
            raise Broken(f"the part {entry.filename} is in it twice")
        seen[entry.filename.lower()] = entry.filename
    if sum(entry.file_size for entry in entries) > _MAX_UNPACKED_BYTES:
        raise Broken(f"unpacked it is over {_MAX_UNPACKED_BYTES:,} bytes")
    if _CONTENT_TYPES not in archive.namelist():
        raise Broken(f"the part {_CONTENT_TYPES} is missing: it is a zip archive, but not an office document")
    small, last_rows, sheets = {}, {}, {}
    for entry in entries:
        is_xml = entry.filename.endswith((".xml", ".rels"))
        cells = None
        if entry.filename.startswith(_SHEETS) and is_xml and entry.file_size <= _MAX_LOOKED_AT_SHEET_BYTES:
            cells = sheets[entry.filename] = _Cells(entry.filename)
        small[entry.filename], tail = _read_part(archive, entry, is_xml=is_xml, cells=cells)
        if entry.filename.startswith(_SHEETS):
            last_rows[entry.filename] = max(map(int, _ROW.findall(tail)), default=0)
    types = _content_types(small[_CONTENT_TYPES], seen)
    for entry in entries:
        if entry.filename != _CONTENT_TYPES and not types(entry.filename):
            raise Broken(f"the part {entry.filename} has no content type in {_CONTENT_TYPES}")
    main = None
    for name, content in small.items():
        if name.endswith(".rels"):
            for target, relation in _relationships(name, content):
                if target.lower() not in seen:
                    raise Broken(f"{name} refers to the part {target}, which is missing")
                if name == "_rels/.rels" and relation.endswith("/officeDocument"):
                    main = target
    if main is None:
        raise Broken("_rels/.rels names no main document part")
    if types(main) not in _MAIN_TYPES[kind]:
        raise Broken(f"the main part {main} is of type {types(main)}, which is not what a .{kind} file has")
    return last_rows, sheets


class _Cells:
    """The cells of a sheet, as its parser meets them: ECMA-376 part 1, 18.3.1.4.

    A sheet has thousands, so that little is done at each, and the rest at the end for all.
    """

    def __init__(self, part):
        self._part = part
        self._kind = self._text = None
        self._local_names = {}
        self._places = []
        self._strings, self._styles = set(), set()

    def watch(self, parser):
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._read

    def _start(self, name, attributes):
        local = self._local_names.get(name) or self._local_names.setdefault(name, name.rpartition(":")[2])
        if local == "c":
            self._kind = attributes.get("t")
            self._places.append(attributes.get("r", "A1"))
            self._styles.add(attributes.get("s", "0"))
        elif local == "v":
            self._text = ""

    def _read(self, text):
        if self._text is not None:
            self._text += text

    def _end(self, name):
        text = self._text
        if text is not None and self._local_names[name] == "v":
            if self._kind == "s":
                self._strings.add(text)
            elif text and self._kind in (None, "n"):
                float(text)  # what is no number is a fault that a reader repairs by throwing the cell away
            self._text = None

    def finish(self):
        """Look at what was gathered; raises ValueError for what no reader can read."""
        self.strings, self.styles = (max(map(int, found), default=-1) for found in (self._strings, self._styles))
        """The largest index into the shared strings, and into the cell formats."""
        text = "\n".join(self._places)
        found = _PLACES.findall(text)
        if len(found) != len(self._places) or text.count("\n") >= max(1, len(found)):
            wrong = next(place for place in self._places if "\n" in place or _PLACES.fullmatch(place) is None)
            raise Broken(f"the part {self._part} has a cell at {wrong!a}, which is no place")
        rows = [int(row) for _, row in found]
        columns = sorted({column for column, _ in found}, key=lambda column: (len(column), column))
        self.dimension = f"{columns[0]}{min(rows)}:{columns[-1]}{max(rows)}" if found else "A1:A1"
        """The used range, as `A1:F322`."""


def _read_part(archive, entry, *, is_xml, cells=None):
    """Read a part whole, which checks its CRC; parse it if it is XML.

    Gives the content of the two kinds that matter, and the end of any.
    """
    parser = expat.ParserCreate() if is_xml else None
    kept = io.BytesIO() if entry.filename.endswith(".rels") or entry.filename == _CONTENT_TYPES else None
    if parser is not None:
        parser.EntityDeclHandler = _refuse_entities
        if cells is not None:
            cells.watch(parser)
    tail = b""
    try:
        with archive.open(entry) as part:
            while chunk := part.read(_CHUNK_BYTES):
                tail = (tail + chunk)[-_CHUNK_BYTES:]
                if parser is not None:
                    parser.Parse(chunk, False)
                if kept is not None:
                    kept.write(chunk)
        if parser is not None:
            parser.Parse(b"", True)
        if cells is not None:
            cells.finish()
    except Broken:
        raise
    except expat.ExpatError as fault:
        raise Broken(f"the part {entry.filename} is not well-formed XML: {fault}") from None
    except ValueError as fault:
        raise Broken(f"the part {entry.filename} has a cell that can't be read: {fault}") from None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError) as fault:
        raise Broken(f"the part {entry.filename} can't be unpacked: {fault}") from None
    except Exception as fault:  # zlib.error is no subclass of anything more
        raise Broken(f"the part {entry.filename} can't be unpacked: {type(fault).__name__}: {fault}") from None
    return kept.getvalue() if kept is not None else b"", tail


def _refuse_entities(name, *_):
    raise Broken(f"a part declares the entity {name}, which office documents never do")


def _elements(content):
    found = []
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = lambda name, attributes: found.append((name.rsplit(" ", 1)[-1], attributes))
    parser.Parse(content, True)
    return found


def _content_types(content, seen):
    overrides, defaults = {}, {}
    for name, attributes in _elements(content):
        if name == "Override":
            part = attributes.get("PartName", "").lstrip("/")
            if part.lower() not in seen:
                raise Broken(f"{_CONTENT_TYPES} names the part {part}, which is missing")
            overrides[part.lower()] = attributes.get("ContentType", "")
        elif name == "Default":
            defaults[attributes.get("Extension", "").lower()] = attributes.get("ContentType", "")

    def type_of(part):
        return overrides.get(part.lower()) or defaults.get(part.rsplit(".", 1)[-1].lower())

    return type_of


def _relationships(rels_name, content):
    """Internal targets as part names, with the relationship's type."""
    folder = posixpath.dirname(posixpath.dirname(rels_name))
    for name, attributes in _elements(content):
        if name == "Relationship" and attributes.get("TargetMode") != "External":
            target = unquote(attributes.get("Target", "").partition("#")[0])
            if target and target != "NULL":
                absolute = target if target.startswith("/") else posixpath.join("/", folder, target)
                yield posixpath.normpath(absolute).lstrip("/"), attributes.get("Type", "")


def _open_xlsx(path, last_rows, cells):
    import openpyxl

    # As a stream: the cells have been looked at, and to make an object of each would take most of the time of a check.
    workbook = openpyxl.load_workbook(path, read_only=True)
    if not workbook.sheetnames:
        raise Broken("it has no sheet")
    sheets = {}
    for sheet in workbook.worksheets:
        part = sheet._worksheet_path.lstrip("/")
        found = cells.get(part)
        if found is None:
            sheets[sheet.title] = f"{last_rows.get(part, 0):,} rows"
            continue
        if found.strings >= len(sheet._shared_strings):
            raise Broken(f"the part {part} has a cell with the shared string {found.strings}, which is missing")
        if found.styles >= max(1, len(workbook._cell_styles)):
            raise Broken(f"the part {part} has a cell with the format {found.styles}, which is missing")
        sheets[sheet.title] = found.dimension
    return {"sheets": sheets}


def _open_docx(path, *_):
    import docx

    document = docx.Document(path)
    return {"paragraphs": len(document.paragraphs), "tables": len(document.tables)}


def _open_pptx(path, *_):
    import pptx

    presentation = pptx.Presentation(path)
    for slide in presentation.slides:
        for shape in slide.shapes:
            if shape.has_text_frame:
                shape.text_frame.text  # noqa: B018  a broken part shows when it is read
    return {"slides": len(presentation.slides)}


def main():
    # A library prints warnings; the one line on stdout is ours.
    print(json.dumps([check(path) for path in sys.argv[1:]]))


if __name__ == "__main__":
    main()
