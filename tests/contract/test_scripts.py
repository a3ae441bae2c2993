"""A script behaves as with `python script.py`, and what it leaves is taken faithfully. The same for every runtime."""

import json
import os
import subprocess
import sys

import pytest

from sandbox.job import Status
from sandbox.runtimes.base import Runtime
from sandbox.workspace import Workspace
from tests.conftest import Run


@pytest.mark.case("R12")
async def test_nothing_of_one_run_is_seen_by_the_next(run: Run) -> None:
    first = await run(
        "import os\n"
        "for place in ('/tmp/left', '/dev/shm/left'): open(place, 'w').close()\n"
        "os.makedirs('/workspace/scripts/__pycache__')\n"
        "open('/workspace/scripts/__pycache__/helper.cpython-311.pyc', 'wb').write(b'poison')\n"
        "import json; json.dumps = None\n"
        "try: open(json.__file__, 'a')\nexcept OSError as fault: print('refused', fault.errno in (13, 30))"
    )
    assert first.stdout.text == "refused True\n"
    second = await run(
        "import os, json, glob\n"
        "print(os.listdir('/tmp'), os.listdir('/dev/shm'), json.dumps([1]), glob.glob('/workspace/**/__pycache__', recursive=True))"
    )
    assert second.stdout.text == "[] [] [1] []\n"


async def test_nothing_that_a_run_wrote_to_stdin_is_read_by_the_next(run: Run, runtime: Runtime) -> None:
    left = await run(
        "import fcntl, os\n"
        "fcntl.fcntl(0, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND)\n"
        "try: print(os.write(os.open('/proc/self/fd/0', os.O_WRONLY | os.O_NONBLOCK), b'left'))\n"
        "except PermissionError: print('refused')"
    )
    is_anothers = runtime.name == "warm" and os.geteuid() == 0  # the launcher's, whose user is not the run's then
    assert left.stdout.text == ("refused\n" if is_anothers else "4\n")
    second = await run(
        "import fcntl, os, sys\nprint(fcntl.fcntl(0, fcntl.F_GETFL) & os.O_NONBLOCK, repr(sys.stdin.read()))"
    )
    assert second.stdout.text == "0 ''\n"


async def test_a_file_of_any_time_is_taken(run: Run, workspace: Workspace) -> None:
    done = await run(
        "import ctypes, struct\nopen('a.txt', 'w').write('x')\n"
        "print(ctypes.CDLL(None).utimensat(-100, b'a.txt', struct.pack('qqqq', 1 << 40, 0, 1 << 40, 0), 0))"
    )
    assert (done.status, done.stdout.text) == (Status.SUCCEEDED, "0\n")
    assert workspace.read_bytes("a.txt") == b"x"


async def test_many_files_of_all_sizes_go_in_and_out_as_they_are(run: Run, workspace: Workspace) -> None:
    names = [f"{'d' * (number % 3)}{number % 7}/{'deep/' * (number % 4)}{number}.bin" for number in range(150)]
    lengths = [0, 1, 4095, 65_531, 65_536, 131_071, 131_072, 131_073, 262_144, 300_000]
    wanted = {name: bytes([number]) * lengths[number % len(lengths)] for number, name in enumerate(names)}
    done = await run(
        f"import os\nfor number, name in enumerate({names}):\n"
        f"  os.makedirs(os.path.dirname(name), exist_ok=True)\n"
        f"  open(name, 'wb').write(bytes([number]) * {lengths}[number % {len(lengths)}])"
    )
    assert {file.path: file.bytes for file in done.files} == {name: len(data) for name, data in wanted.items()}
    assert {name: workspace.read_bytes(name) for name in names} == wanted
    again = await run(
        f"print([number for number, name in enumerate({names})\n"
        f"  if open(name, 'rb').read() != bytes([number]) * {lengths}[number % {len(lengths)}]])"
    )
    assert (again.stdout.text, again.files) == ("[]\n", ())


async def test_files_with_the_longest_paths_go_in_and_out(run: Run, workspace: Workspace) -> None:
    made = await run(
        "import os\nfor n in range(31):\n  os.mkdir('d' * 255); os.chdir('d' * 255)\n"
        "for n in range(30): open(f'{n}'.rjust(255, 'f'), 'w').write(str(n))"
    )
    assert made.status is Status.SUCCEEDED
    assert [len(info.path) for info in workspace.list_files() if "f" in info.path] == [32 * 256 - 1] * 30
    read = await run(
        "import os\nfor n in range(31): os.chdir('d' * 255)\n"
        "print(sorted(int(open(name).read()) for name in os.listdir()) == list(range(30)))"
    )
    assert read.stdout.text == "True\n"


@pytest.mark.case("R14")
async def test_every_file_is_listed_under_its_own_name(run: Run, workspace: Workspace) -> None:
    names = [
        "with space.txt",
        "über-naïve 'q\" \\x41.txt",
        "_hidden.txt",
        ".dot",
        "code_0.py",
        "a/same.txt",
        "b/same.txt",
    ]
    done = await run(
        f"import os\nfor n in {names!r}:\n"
        "  os.makedirs(os.path.dirname(n) or '.', exist_ok=True); open(n, 'w').write(n)\n"
        "open(b'bad-\\xff\\\\.txt', 'w').write('bytes')"
    )
    assert done.status is Status.SUCCEEDED
    listed = {change.path for change in done.files}
    assert listed == {n.replace("\\x41", "\\x5cx41") for n in names} | {"bad-\\xff\\x5c.txt"}
    for path in listed:
        content = workspace.read_bytes(path).decode()
        assert content in (*names, "bytes")
    assert workspace.read_bytes("bad-\\xff\\x5c.txt") == b"bytes"


@pytest.mark.case("R15", "D9")
async def test_every_new_or_changed_file_is_listed_and_no_unchanged_one(run: Run, workspace: Workspace) -> None:
    for name in ("same.txt", "again.txt", "touched.txt", "mapped.bin", "gone.txt", "moved.txt", "dir/inner.txt"):
        workspace.write(name, b"0123456789")
    done = await run(
        "import mmap, os, pathlib, shutil, sqlite3, zipfile\n"
        "pathlib.Path('sub/deep').mkdir(parents=True)\n"
        "pathlib.Path('sub/deep/p.txt').write_text('x')\n"
        "shutil.copy('same.txt', 'copy.txt')\n"
        "with zipfile.ZipFile('z.zip', 'w') as z: z.write('same.txt')\n"
        "db = sqlite3.connect('d.sqlite'); db.execute('create table t(a)'); db.commit()\n"
        "os.rename('moved.txt', 'sub/moved.txt'); os.rename('dir', 'dir2'); os.unlink('gone.txt')\n"
        "pathlib.Path('again.txt').write_text('0123456789'); os.utime('touched.txt')\n"
        "with open('mapped.bin', 'r+b') as f:\n"
        "  m = mmap.mmap(f.fileno(), 10); m[0]; m[0:1] = b'X'; m.close()\n"
        "for n in range(300): open(f'many{n}', 'w').write('m')\n"
    )
    changes = {change.path: change.change for change in done.files if not change.path.startswith("many")}
    assert changes == {
        "sub/deep/p.txt": "created", "copy.txt": "created", "z.zip": "created", "d.sqlite": "created",
        "sub/moved.txt": "created", "moved.txt": "deleted", "gone.txt": "deleted", "mapped.bin": "modified",
        "again.txt": "modified", "touched.txt": "modified",
        "dir2/inner.txt": "created", "dir/inner.txt": "deleted",
    }  # fmt: skip
    assert sum(change.path.startswith("many") for change in done.files) == 300
    assert workspace.read_bytes("mapped.bin") == b"X123456789"
    assert not workspace.exists("gone.txt")
    again = await run("print(open('sub/deep/p.txt').read(), open('dir2/inner.txt').read())")
    assert again.stdout.text == "x 0123456789\n"
    assert again.files == ()


@pytest.mark.case("R16")
async def test_deep_and_closed_folders_are_bounded_and_reported(run: Run, workspace: Workspace) -> None:
    done = await run(
        "import os\n"
        "os.makedirs('closed/in'); open('closed/in/f', 'w').write('kept'); os.chmod('closed/in/f', 0); os.chmod('closed', 0)\n"
        "for _ in range(1000): os.mkdir('d'); os.chdir('d')\n"
    )
    assert done.status is Status.SUCCEEDED
    assert workspace.read_bytes("closed/in/f") == b"kept"
    assert [skipped.reason for skipped in done.skipped] == ["more than 32 folders deep"]
    assert any("not kept" in warning for warning in done.warnings)


@pytest.mark.case("R17")
@pytest.mark.parametrize(
    ("code", "exit_code", "status"),
    [
        ("import sys; sys.exit(3)", 3, Status.FAILED),
        ("import os; os._exit(3)", 3, Status.FAILED),
        ("import sys; sys.exit('why')", 1, Status.FAILED),
        ("raise SystemExit(-1)", 255, Status.FAILED),
        ("raise SystemExit", 0, Status.SUCCEEDED),
        ("1/0", 1, Status.FAILED),
    ],
)
async def test_exit_codes_are_those_of_python(run: Run, code: str, exit_code: int, status: Status) -> None:
    done = await run("open('ran.txt', 'a').write('x')\n" + code)
    assert (done.exit_code, done.status) == (exit_code, status)
    assert [change.bytes for change in done.files if change.path == "ran.txt"] == [1]


@pytest.mark.case("R17")
async def test_a_syntax_error_shows_its_line(run: Run, workspace: Workspace) -> None:
    done = await run("x = 1\ndef broken(:\n  pass")
    assert done.error is not None
    assert (done.error.type, done.error.path, done.error.line) == ("SyntaxError", "scripts/script.py", 2)
    assert done.error.source_line == "def broken(:"
    assert b"Traceback" not in workspace.read_bytes(done.error.traceback_path or "")


@pytest.mark.case("R17")
async def test_a_crash_of_the_interpreter_is_named(run: Run) -> None:
    done = await run("import ctypes; ctypes.string_at(0)")
    assert (done.status, done.signal, done.exit_code) == (Status.FAILED, "SIGSEGV", None)
    assert done.error is not None
    assert "invalid memory access" in done.error.summary


@pytest.mark.case("R18")
async def test_a_deep_recursion_keeps_the_users_innermost_frame(run: Run, workspace: Workspace) -> None:
    done = await run("def down(n):\n    return down(n - 1) if n else 1 / 0\ndown(400)")
    assert done.error is not None
    assert done.error.type == "ZeroDivisionError"
    assert "scripts/script.py, line 2, in down" in done.error.summary
    assert "return down(n - 1) if n else 1 / 0" in done.error.summary
    assert done.error.traceback_path is not None
    assert b"line 3, in <module>" in workspace.read_bytes(done.error.traceback_path)


@pytest.mark.case("R18")
async def test_chained_and_grouped_and_huge_exceptions_stay_short_and_are_kept_whole(
    run: Run, workspace: Workspace
) -> None:
    chained = await run("try:\n    {}['key']\nexcept KeyError as e:\n    raise ValueError('outer') from e")
    assert chained.error is not None
    assert chained.error.summary.startswith("ValueError: outer\n  at scripts/script.py, line 4")
    assert "KeyError: 'key'" in chained.error.summary
    whole = workspace.read_bytes(chained.error.traceback_path or "")
    assert b"direct cause" in whole

    grouped = await run("raise ExceptionGroup('many', [ValueError('first'), TypeError('second')])")
    assert grouped.error is not None
    assert "ExceptionGroup: many (2 sub-exceptions)" in grouped.error.summary
    assert "first of the group: ValueError: first" in grouped.error.summary
    assert b"TypeError: second" in workspace.read_bytes(grouped.error.traceback_path or "")

    huge = await run("class " + "Long" * 50 + "(Exception): pass\nraise " + "Long" * 50 + "('m' * 100_000)")
    assert huge.error is not None
    assert len(huge.error.summary) <= 1000
    assert "(100,000 characters in all)" in huge.error.summary
    assert "line 2" in huge.error.summary
    assert f"Full text: {huge.error.traceback_path}" in huge.error.summary
    assert len(workspace.read_bytes(huge.error.traceback_path or "")) > 100_000
    assert len(huge.stderr.text) < 200


async def test_the_traceback_is_told_once_and_kept_whole(run: Run, workspace: Workspace) -> None:
    done = await run("import sys\nprint('before', file=sys.stderr)\n1/0")
    assert done.error is not None
    assert done.stderr.text == f"before\n[traceback left out: see {done.error.traceback_path}]\n"
    assert workspace.read_bytes(done.error.traceback_path or "").decode() == (
        "scripts/script.py: failed\nbefore\nTraceback (most recent call last):\n"
        '  File "/workspace/scripts/script.py", line 3, in <module>\n    1/0\n    ~^~\nZeroDivisionError: division by zero\n'
    )


async def test_no_frame_of_ours_shows(run: Run, workspace: Workspace) -> None:
    done = await run("import threading\ndef f(): 1/0\nt = threading.Thread(target=f); t.start(); t.join()\nf()")
    assert done.error is not None
    whole = workspace.read_bytes(done.error.traceback_path or "") + done.stderr.text.encode()
    assert whole.count(b"ZeroDivisionError") == 3  # the thread's in both, the script's own in the file only
    assert b"/opt/spillbox" not in whole
    assert b"run_script" not in whole


async def test_a_traceback_is_kept_even_if_the_script_hides_it(run: Run, workspace: Workspace) -> None:
    done = await run("import sys\nsys.excepthook = lambda *a: None\nsys.stderr = open('/dev/null', 'w')\n1/0")
    assert done.error is not None
    assert done.error.type == "ZeroDivisionError"
    assert b"ZeroDivisionError: division by zero" in workspace.read_bytes(done.error.traceback_path or "")


@pytest.mark.case("R19")
async def test_a_script_may_shadow_a_library_and_read_itself(run: Run) -> None:
    shadow = await run(
        "import json\nprint(json.__file__ if hasattr(json, '__file__') else '', __name__)",
        name="json.py",
        may_be_cold=True,
    )
    assert shadow.stdout.text == "/workspace/json.py json\n/workspace/json.py __main__\n"
    library = await run("raise RuntimeError('mine')", name="openpyxl.py", may_be_cold=True)
    assert library.error is not None
    assert library.error.message == "mine"
    beside = await run("import json", "x", name="beside.py", may_be_cold=True)
    assert beside.stdout.text == "/workspace/json.py json\n"
    itself = await run("print(open(__file__).read() == open('scripts/script.py').read())")
    assert itself.stdout.text == "True\n"


async def test_the_script_sees_what_it_would_see_with_python(
    run: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    code = (
        "import sys\n"
        "print(__name__, __spec__, __doc__, __package__, __builtins__.__name__, sys.argv[1:], sys.path[0] == __file__.rpartition('/')[0])\n"
        "print(sorted(n for n in globals() if n not in ('sys', '__cached__')), sys.flags.utf8_mode, sys.stdin.read())\n"
        "print(exit, quit, callable(help))\n"
    )
    done = await run(code, "x")
    folder = tmp_path_factory.mktemp("bare")
    (folder / "script.py").write_text(code)
    bare = subprocess.run(
        [sys.executable, "-X", "utf8", str(folder / "script.py"), "x"], capture_output=True, text=True, check=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.stdout.text == bare.stdout


async def test_what_happens_at_the_end_of_a_script_happens(run: Run, workspace: Workspace) -> None:
    done = await run(
        "import atexit, threading, time\n"
        "atexit.register(print, 'atexit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
        "f = open('unflushed.txt', 'w'); f.write('flushed')\n"
        "class D:\n  def __del__(self): print('del')\n"
        "d = D(); cycle = []; cycle.append(cycle)\n"
        "print('main')"
    )
    assert done.stdout.text == "main\nthread\natexit\ndel\n"
    assert workspace.read_bytes("unflushed.txt") == b"flushed"


@pytest.mark.case("R24")
@pytest.mark.parametrize("module", ["numpy", "pandas", "requests"])
async def test_a_missing_library_is_told_with_what_is_there(run: Run, module: str) -> None:
    done = await run(f"import {module}")
    assert done.error is not None
    assert done.error.type == "ModuleNotFoundError"
    assert "openpyxl 3" in (done.error.hint or "")
    assert "python-docx 1" in (done.error.hint or "")


@pytest.mark.case("R25")
async def test_every_standard_module_that_imports_here_imports_there(run: Run) -> None:
    code = (
        "import importlib, json, sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "failed = {}\n"
        "for name in sorted(sys.stdlib_module_names - {'antigravity', 'this', 'idlelib'}):\n"
        "  try: importlib.import_module(name)\n"
        "  except Exception as e: failed[name] = type(e).__name__\n"
        "print(json.dumps(failed))"
    )
    here = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    done = await run(code)
    assert set(json.loads(done.stdout.text)) <= set(json.loads(here.stdout))


@pytest.mark.case("R25")
async def test_the_ordinary_means_of_a_script_work(run: Run) -> None:
    done = await run(
        "import asyncio, concurrent.futures, datetime, multiprocessing, sqlite3, subprocess, sys, tempfile, threading, zoneinfo\n"
        "if __name__ == '__main__':\n"
        "  with multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, -2]))\n"
        "  with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(abs, [-3]))\n"
        "  with concurrent.futures.ThreadPoolExecutor(4) as pool: print(sum(pool.map(abs, range(10))))\n"
        "  print(asyncio.run(asyncio.sleep(0, 'slept')))\n"
        "  print(datetime.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo('Asia/Seoul')).isoformat())\n"
        "  print(sqlite3.connect(':memory:').execute('select 1 + 1').fetchone())\n"
        "  with tempfile.NamedTemporaryFile() as f: print(f.name.startswith('/tmp/'))\n"
        "  print(subprocess.run([sys.executable, '-c', 'import openpyxl; print(6)'], capture_output=True, text=True).stdout)\n"
    )
    assert done.stderr.text == ""
    assert done.stdout.text == (
        "[1, 2]\n[3]\n45\nslept\n2024-07-01T00:00:00+09:00\n(2,)\nTrue\n6\n\n"
    )  # fmt: skip


async def test_random_seeds_differ_between_runs(run: Run) -> None:
    code = "import random, os, uuid; print(random.random(), os.urandom(8), uuid.uuid4())"
    assert (await run(code)).stdout.text != (await run(code)).stdout.text


@pytest.mark.case("D6", "D8")
@pytest.mark.parametrize(
    ("code", "cure"),
    [
        ("import docx\ndocx.Document().add_picture('https://example.com/a.png')", "takes a file, not a URL"),
        ("import docx\nopen('a.svg', 'w').write('<svg/>')\ndocx.Document().add_picture('a.svg')", "PNG, JPEG"),
        (
            "import pptx\nfrom PIL import Image\nImage.new('RGB', (2, 2)).save('a.webp')\np = pptx.Presentation()\n"
            "p.slides.add_slide(p.slide_layouts[6]).shapes.add_picture('a.webp', 0, 0)",
            "PNG, JPEG",
        ),
        ("import docx\ndocx.Document().add_table(1, 1).style = 'No Such Style'", "Table Grid"),
        (
            "import pptx\np = pptx.Presentation()\ns = p.slides.add_slide(p.slide_layouts[0]).shapes.title\n"
            "s.text = 'x'\ns.text_frame.fit_text()",
            "font.size",
        ),
        ("open('reslts/a.json')", "list_files"),
        ("open('scripts/scrpt.py')", "scripts/script.py"),
        ("import os\nos.rename('scripts/script.py', '/tmp/x')", "shutil.move"),
        ("import urllib.request\nurllib.request.urlopen('http://example.com')", "no network"),
    ],
)
async def test_common_mistakes_get_a_hint_that_names_the_cure(run: Run, code: str, cure: str) -> None:
    done = await run(code)
    assert done.error is not None
    assert cure in (done.error.hint or ""), done.error.summary


@pytest.mark.case("R9")
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("socket.create_connection(('192.0.2.1', 80), 5)", "OSError"),
        ("socket.create_connection(('127.0.0.1', 80), 5)", "OSError"),
        ("socket.create_connection(('169.254.169.254', 80), 5)", "OSError"),
        ("socket.create_connection(('::1', 80), 5)", "OSError"),
        ("socket.getaddrinfo('example.com', 80)", "socket.gaierror"),
    ],
)
async def test_every_way_to_the_network_is_refused_and_the_hint_says_why(run: Run, code: str, error: str) -> None:
    done = await run(f"import socket\n{code}")
    assert done.error is not None
    assert done.error.type == error
    assert done.usage.wall_seconds < 3
    assert "no network in the sandbox, by design" in (done.error.hint or "")


@pytest.mark.case("R9")
async def test_the_sockets_of_the_host_are_not_there(run: Run) -> None:
    done = await run(
        "import os\nprint([p for p in ('/var/run/docker.sock', '/run/docker.sock', '/run/systemd') if os.path.exists(p)])"
    )
    assert done.stdout.text == "[]\n"


@pytest.mark.parametrize(
    "code",
    [
        "import pickle, io\npickle.load(io.BytesIO())",
        "raise ValueError('http status 500')",
        "{}['https://example.com']",
    ],
)
async def test_a_hint_is_not_given_for_what_only_looks_alike(run: Run, code: str) -> None:
    done = await run(code)
    assert done.error is not None
    assert done.error.hint is None


async def test_a_program_that_is_not_there_is_told_as_such(run: Run) -> None:
    done = await run("import subprocess\nsubprocess.run(['libreoffice'])")
    assert done.error is not None
    assert "no other programs" in (done.error.hint or "")


@pytest.mark.case("D6")
async def test_a_slow_word_table_is_stopped_with_the_cure_and_the_cure_is_fast(run: Run) -> None:
    make = "import docx\nt = docx.Document().add_table(400, 7)\n"
    slow = await run(make + "for i in range(400):\n  for j in range(7): t.cell(i, j).text = 'x'", wall_seconds=3)
    assert slow.status is Status.TIMED_OUT
    assert slow.error is not None
    assert "row.cells" in (slow.error.hint or "")
    other = await run("import time\ntime.sleep(9)", wall_seconds=1)
    assert other.error is not None
    assert "row.cells" not in (other.error.hint or "")
    fast = await run(make + "for row in t.rows:\n  for cell in row.cells: cell.text = 'x'")
    assert fast.status is Status.SUCCEEDED
