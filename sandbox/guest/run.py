"""Runs a user's script in this process as `python script.py` would, and reports an exception that nothing caught.

The report goes to two files in /run/report, a tiny tmpfs that has room when everything else is full:
`traceback.txt`, as the interpreter prints it, and `error.json`, its parts. It is the guest's own word about itself.
"""

import atexit
import builtins
import gc
import os
import sys
from _frozen_importlib_external import SourceFileLoader

REPORT = "/run/report"
_WORKSPACE, _PROGRAMS = "/workspace/", "/opt/spillbox/"
OURS = (
    "first", "frames", "fresh", "init", "kernel", "launcher", "preload_office", "preload_plain", "run", "wire", "worker",
    "worker_tree",
)  # fmt: skip
"""Modules that no script sees."""
_REHEARSAL = """
import sys
def function(n):
    return [str(n) for n in range(n)]
class Kind:
    pass
print(function(50), Kind(), 1 / 3, {"a": sys.argv})
"""
_MAX_MESSAGE_CHARACTERS = 20_000
_MAX_SOURCE_LINE_CHARACTERS = 300


def run_script(path, arguments):
    """Run the script as ``__main__``, and end this process as the interpreter would; does not return."""
    sys.argv = [path, *arguments]
    sys.orig_argv = [sys.executable, path, *arguments]
    sys.path[0] = os.path.dirname(path)
    main = type(sys)("__main__")
    main.__dict__.update(
        __annotations__={},
        __builtins__=builtins,
        __file__=path,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", path),
        __package__=None,
        __spec__=None,
        __doc__=None,
    )
    sys.modules["__main__"] = main
    for ours in OURS:
        sys.modules.pop(ours, None)
    if "threading" in sys.modules:
        sys.modules["threading"].main_thread()._set_native_id()  # it was imported in a process above this one
    exit_code = 0
    try:
        exec(_code_of(path), main.__dict__)
    except SystemExit as leaving:
        exit_code = _exit_code_of(leaving)
    except BaseException as exception:
        while exception.__traceback__ and exception.__traceback__.tb_frame.f_globals is globals():
            exception.__traceback__ = exception.__traceback__.tb_next  # ours, above the script's own
        _show(exception)
        exit_code = 1
    _leave(main, exit_code)


def rehearse():
    """Run a script of nothing, so that the memory which the start and the end of any script write to is this process's own."""
    from io import StringIO

    screen = sys.stdout
    sys.stdout = StringIO()
    exec(compile(_REHEARSAL, "rehearsal", "exec", dont_inherit=True), {"__builtins__": builtins})
    sys.stdout = screen
    gc.collect()


def _code_of(path):
    """The compiled script; for a program of ours as it was compiled at setup, for a user's never."""
    if path.startswith(_PROGRAMS):
        return SourceFileLoader("__main__", path).get_code("__main__")
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _exit_code_of(leaving):
    """What the interpreter makes of SystemExit: None is 0, a number is cut to a byte, anything else is printed."""
    code = leaving.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(2**63) <= code < 2**63 else 0xFF
    try:
        print(code, file=sys.stderr)
    except BaseException:
        pass
    return 1


def _leave(main, exit_code):
    """What Py_FinalizeEx does that a script can notice, in its order, without taking the whole interpreter to pieces.

    That would touch each object of the interpreter, 4 ms of copied pages in a forked process. Threads are waited for,
    atexit functions run, streams are flushed, and the script's own objects are destroyed: names that begin with one
    underscore first, as the interpreter does it. Objects that only a library's module still holds are not.
    """
    for finish in (_wait_for_threads, atexit._run_exitfuncs, _flush):
        try:
            finish()
        except BaseException as exception:
            sys.excepthook(type(exception), exception, exception.__traceback__)
    names = main.__dict__
    for private in (True, False):
        for name in [n for n in names if n != "__builtins__" and private == (n[:1] == "_" and n[1:2] != "_")]:
            names[name] = None
    gc.collect()
    try:
        _flush()
    except BaseException:
        exit_code = exit_code or 120  # as the interpreter says that stdout could not be flushed
    os._exit(exit_code)


def _wait_for_threads():
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()


def _flush():
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()


def _show(exception):
    arguments = (type(exception), exception, exception.__traceback__)
    sys.last_type, sys.last_value, sys.last_traceback = arguments
    try:
        _report(arguments)
    except BaseException as fault:
        os.write(2, f"(no report: {type(fault).__name__})\n".encode("ascii", "replace"))
    try:
        sys.excepthook(*arguments)
    except BaseException as fault:
        sys.__excepthook__(type(fault), fault, fault.__traceback__)
        sys.__excepthook__(*arguments)


def _report(arguments):
    with open(f"{REPORT}/error.json", "w", encoding="ascii") as file:
        file.write(_as_json(arguments[1]))
    screen = sys.stderr
    with open(f"{REPORT}/traceback.txt", "w", encoding="utf-8", errors="backslashreplace") as file:
        sys.stderr = file
        try:
            sys.__excepthook__(*arguments)
        finally:
            sys.stderr = screen


def _as_json(exception):
    # `json` may be a file of the user's, and would cost time; its C helper does what is needed.
    from _json import encode_basestring_ascii as quoted

    message = _text_of(exception)
    path, line, function, source_line = _innermost_place(exception)
    # A group says little by itself: its first leaf is what went wrong.
    leaf = exception
    while isinstance(leaf, BaseExceptionGroup) and leaf.exceptions:
        leaf = leaf.exceptions[0]
    cause = exception.__cause__ or (None if exception.__suppress_context__ else exception.__context__)
    values = {
        "type": quoted(_type_of(exception)),
        "message": quoted(message[:_MAX_MESSAGE_CHARACTERS]),
        "message_characters": str(len(message)),
        "path": quoted(path) if path else "null",
        "line": str(line or 0),
        "function": quoted(function),
        "source_line": quoted(source_line),
        "errno": str(leaf.errno) if isinstance(leaf, OSError) and isinstance(leaf.errno, int) else "null",
        "name": quoted(str(getattr(leaf, "name", None) or getattr(leaf, "filename", None) or "")[:1000]),
        "leaf": "null" if leaf is exception else quoted(f"{_type_of(leaf)}: {_text_of(leaf)[:500]}"),
        "cause": "null" if cause is None else quoted(f"{_type_of(cause)}: {_text_of(cause)[:500]}"),
    }
    return "{" + ", ".join(f'"{key}": {value}' for key, value in values.items()) + "}"


def _type_of(exception):
    kind = type(exception)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def _text_of(exception):
    try:
        return str(exception)
    except BaseException:
        return "<the exception's text could not be made>"


def _innermost_place(exception):
    """Path, line, function and source line of the innermost frame that is in the workspace."""
    if isinstance(exception, SyntaxError) and (exception.filename or "").startswith(_WORKSPACE):
        return exception.filename, exception.lineno, "", (exception.text or "").strip()[:_MAX_SOURCE_LINE_CHARACTERS]
    innermost = None
    traceback = exception.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.startswith(_WORKSPACE):
            innermost = traceback
        traceback = traceback.tb_next
    if innermost is None:
        return None, 0, "", ""
    code = innermost.tb_frame.f_code
    return code.co_filename, innermost.tb_lineno, code.co_name, _line_of(code.co_filename, innermost.tb_lineno)


def _line_of(path, wanted):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, text in enumerate(file, 1):
                if number == wanted:
                    return text.strip()[:_MAX_SOURCE_LINE_CHARACTERS]
    except OSError:
        pass
    return ""
