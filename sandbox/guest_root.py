"""The guest root: the only file system tree that a guest script can see besides its workspace.

It is built once by copying from this machine, by an allow-list: the Python interpreter, its standard library,
the shared libraries these need, and the locked, hash-checked office libraries. Nothing else of the host is in it, so
nothing else of the host can leak into a jail, and a later upgrade of the host does not change what guests import.

    /usr/bin/python3            the interpreter
    /usr/lib/python3.X          the standard library, byte-compiled
    /usr/lib/*.so*              shared libraries (/lib and /lib64 are links to it)
    /opt/venv                   the office libraries, byte-compiled
    /opt/spillbox               the programs of `sandbox/guest`
    /workspace /tmp /proc …     empty places where the jail mounts
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import GuestRootMissing, SetupFailed

PROJECT = Path(__file__).resolve().parent.parent
IMAGE = PROJECT / "images" / "runtime"
GUEST_PROGRAMS = PROJECT / "sandbox" / "guest"

FOLDER = "guest-root"
"""Of a data folder, where it is if nothing else is said."""

PYTHON = "/opt/venv/bin/python"
BARE_PYTHON = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
LIBRARIES = "/usr/lib"
PROGRAMS = "/opt/spillbox"
MOUNT_POINTS = ("workspace", "tmp", "proc", "dev", "dev/shm", "run/report", "run/launcher")

_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_LEFT_OUT = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idle_test", "_bundled"}
_LEFT_OUT_FILES = {"sitecustomize.py", "usercustomize.py"}
CONTAINER_UIDS = range(2_000_000_000, 2_000_000_256)
"""Of guests in containers, which have no user namespace of their own: far from any account, and below those of jails."""
ACCOUNTS = {
    "passwd": "root:x:0:0:root:/:/bin/false\nguest:x:1000:1000:guest:/tmp:/bin/false\n"
    + "".join(f"guest{n}:x:{uid}:{uid}:guest:/tmp:/bin/false\n" for n, uid in enumerate(CONTAINER_UIDS)),
    "group": "root:x:0:\nguest:x:1000:\n",
    "hosts": "127.0.0.1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


@dataclass(frozen=True)
class Guest:
    """What scripts have to work with."""

    python_version: str
    libraries: dict[str, str]
    """Distribution name to version, of the office libraries and what they need."""


@dataclass(frozen=True)
class GuestRoot(Guest):
    """A built guest root."""

    path: Path


def load(path: Path) -> GuestRoot:
    """The guest root at ``path``; raises `GuestRootMissing` if it was not built, or is not of this version."""
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
    except (OSError, ValueError):
        raise GuestRootMissing(
            f"There is no guest root at {path}. Run `spillbox setup` first, with the same settings."
        ) from None
    if manifest["digest"] != _digest():
        raise GuestRootMissing(
            f"The guest root at {path} is of another version. Run `spillbox setup` again, with the same settings."
        )
    return GuestRoot(path=path, python_version=manifest["python"], libraries=manifest["libraries"])


def build(path: Path, *, wheels: Path | None = None) -> GuestRoot:
    """Build the guest root at ``path``, replacing an older one; returns at once if it is current.

    The libraries come from the package index that pip is set up for, or, with ``wheels``, only from that folder.
    Raises `SetupFailed` with what to do.
    """
    try:
        return load(path)
    except GuestRootMissing:
        pass
    new = path.with_name(path.name + ".new")
    _remove(new)
    _copy_interpreter(new)
    site = new / "opt/venv/lib" / _VERSION / "site-packages"
    _install_libraries(site, wheels)
    _copy_shared_libraries(new, site)
    _write_small_files(new, site)
    shutil.copytree(GUEST_PROGRAMS, new / PROGRAMS[1:], ignore=shutil.ignore_patterns("__pycache__"))
    _byte_compile(new)
    manifest = {"digest": _digest(), "python": sys.version.split()[0], "libraries": _installed(site)}
    (new / "manifest.json").write_text(json.dumps(manifest, indent=1))
    _open_for_reading(new)
    old = path.with_name(path.name + ".old")
    _remove(old)
    if path.exists():
        path.rename(old)  # a service that runs keeps what its jails have mounted
    new.rename(path)
    _remove(old)
    return load(path)


def _digest() -> str:
    """Changes whenever a root built now would differ from one built before."""
    return hashlib.sha256(f"{sys.version}\0{sys.base_prefix}\0{programs_digest()}".encode()).hexdigest()


def programs_digest() -> str:
    """Changes whenever what a service has to say to a guest's first process may have changed, or the libraries."""
    digest = hashlib.sha256()
    for file in (Path(__file__), IMAGE / "requirements.txt", *sorted(GUEST_PROGRAMS.glob("*.py"))):
        digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()


def _copy_interpreter(root: Path) -> None:
    stdlib = Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix}))
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    (root / "usr/bin").mkdir(parents=True)
    shutil.copy2(executable, root / "usr/bin" / _VERSION)
    (root / "usr/bin/python3").symlink_to(_VERSION)

    def left_out(folder: str, names: list[str]) -> list[str]:
        top = Path(folder) == stdlib
        return [n for n in names if n in _LEFT_OUT or n in _LEFT_OUT_FILES or (top and n.startswith("config-"))]

    shutil.copytree(stdlib, root / "usr" / sys.platlibdir / _VERSION, ignore=left_out, ignore_dangling_symlinks=True)
    (root / "opt/venv/bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (root / "opt/venv/bin" / name).symlink_to(f"/usr/bin/{_VERSION}")
    (root / "opt/venv/pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")


def _install_libraries(site: Path, wheels: Path | None) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    command += ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--target", str(site)]
    if wheels is not None:
        command += ["--no-index", "--find-links", str(wheels)]
    command += ["--requirement", str(IMAGE / "requirements.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  our own arguments
    if done.returncode != 0:
        raise SetupFailed(
            "pip could not install the guest's office libraries. Check the network or the package index that pip is "
            f"set up for, or download the wheels elsewhere and pass --wheels DIR. pip said:\n{done.stderr[-2000:]}"
        )
    shutil.rmtree(site / "bin", ignore_errors=True)


def _copy_shared_libraries(root: Path, site: Path) -> None:
    """Copy what the dynamic loader would load, flat into /usr/lib, one of its built-in search folders."""
    binaries = [root / "usr/bin" / _VERSION, *(root / "usr").rglob("*.so"), *site.rglob("*.so*")]
    lib = root / "usr/lib"
    lib.mkdir(exist_ok=True)
    for start in range(0, len(binaries), 50):
        listed = subprocess.run(  # noqa: S603  files that this module has just copied
            ["ldd", *map(str, binaries[start : start + 50])],  # noqa: S607  part of libc
            capture_output=True,
            text=True,
            check=False,
        )
        for found in re.finditer(r"^\t(?:\S+ => )?(/\S+) \(0x", listed.stdout, re.MULTILINE):
            source = Path(found[1])
            inside = source.resolve().is_relative_to(root.resolve())
            if not inside and not (lib / source.name).exists():
                shutil.copy2(source.resolve(), lib / source.name)
    for link in ("lib", "lib64"):
        (root / link).symlink_to("usr/lib")
    locale = Path("/usr/lib/locale/C.utf8")
    if locale.is_dir():
        shutil.copytree(locale, root / "usr/lib/locale/C.utf8")


def _write_small_files(root: Path, site: Path) -> None:
    for place in MOUNT_POINTS:
        (root / place).mkdir(parents=True, exist_ok=True)
    (root / "etc").mkdir()
    for name, text in ACCOUNTS.items():
        (root / "etc" / name).write_text(text)
    (root / "usr/share").mkdir()
    (root / "usr/share/zoneinfo").symlink_to("/" + str((site / "tzdata/zoneinfo").relative_to(root)))
    for device in ("null", "zero", "urandom"):
        (root / "dev" / device).touch()
    (root / "dev/random").symlink_to("urandom")
    for link, target in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
        (root / "dev" / link).symlink_to(f"/proc/self/fd{target}")


def _byte_compile(root: Path) -> None:
    """Write .pyc files that name guest paths and are used without looking at the source's time."""
    command = [sys.executable, "-m", "compileall", "-q", "-j", "0", "-s", str(root), "-p", "/"]
    command += ["--invalidation-mode", "unchecked-hash", str(root / "usr"), str(root / "opt")]
    # A few files of libraries are templates that no Python can compile; they are not modules, so a failure is no fault.
    subprocess.run(command, capture_output=True, check=False)  # noqa: S603  our own arguments
    # A program that is started by its path would be compiled at each start.
    programs = root / PROGRAMS[1:]
    for name in ("enter", "fresh", "init", "launcher", "worker"):
        shutil.copy(next((programs / "__pycache__").glob(f"{name}.*.pyc")), programs / f"{name}.pyc")


def _installed(site: Path) -> dict[str, str]:
    pairs = (folder.name.removesuffix(".dist-info").rsplit("-", 1) for folder in site.glob("*.dist-info"))
    return {name.replace("_", "-").lower(): version for name, version in sorted(pairs)}


def _open_for_reading(root: Path) -> None:
    """Make everything readable for the guest's uid, whatever this process's umask is."""
    for folder, _, names in os.walk(root):
        Path(folder).chmod(0o755)
        for file in (Path(folder) / name for name in names):
            if not file.is_symlink():
                file.chmod(0o755 if file.stat().st_mode & 0o111 else 0o644)


def _remove(root: Path) -> None:
    if root.exists():
        shutil.rmtree(root)


if __name__ == "__main__":
    build(Path(sys.argv[1]), wheels=Path(sys.argv[2]))
