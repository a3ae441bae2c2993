"""Attacks of a script on its jail, for `spillbox doctor` and for the tests. One list, over every runtime.

An attack prints HELD, or ESCAPED with what it reached, and nothing else; or it asks for something for which the kernel ends the
process. Each has a control: the same in a jail with the one wall taken out that should stop it, where it must succeed. An
attack that can't succeed anywhere would prove nothing.

Arguments of an attack (see `targets`): a port on the host's loopback, the name of an abstract socket of the host, the id of a
process outside, a text that only others' files and the service's environment hold, the device and the inode of the host's null.
"""

import platform
from dataclasses import dataclass, field, replace
from typing import Any

from sandbox.job import Execution, Status
from sandbox.runtimes import seccomp
from sandbox.runtimes.container import NO_FILTER as BARE_CONTAINER
from sandbox.runtimes.nsjail_config import CONFIG_FILE

SECRET_PLACE = "@secret-folder@"  # noqa: S105  no secret
"""Stands in a control's configuration for the folder with the secret in it."""
SECRET = "the-secret-of-another-conversation"  # noqa: S105  what the attacks look for

# Numbers of system calls differ between processors.
_NUMBERS = {
    "x86_64": {
        "ptrace": 101, "mount": 165, "umount2": 166, "unshare": 272, "setns": 308, "keyctl": 250, "bpf": 321, "userfaultfd": 323,
        "io_uring_setup": 425, "process_vm_readv": 310, "perf_event_open": 298, "memfd_create": 319, "clone3": 435,
        "open_by_handle_at": 304, "pidfd_open": 434, "pidfd_getfd": 438, "fsopen": 430, "open_tree": 428, "chroot": 161,
        "pivot_root": 155, "execveat": 322, "seccomp": 317, "init_module": 175, "kexec_load": 246, "swapon": 167,
        "setuid": 105, "add_key": 248, "modify_ldt": 154,
    },
    "aarch64": {
        "ptrace": 117, "mount": 40, "umount2": 39, "unshare": 97, "setns": 268, "keyctl": 219, "bpf": 280, "userfaultfd": 282,
        "io_uring_setup": 425, "process_vm_readv": 270, "perf_event_open": 241, "memfd_create": 279, "clone3": 435,
        "open_by_handle_at": 265, "pidfd_open": 434, "pidfd_getfd": 438, "fsopen": 430, "open_tree": 428, "chroot": 51,
        "pivot_root": 41, "execveat": 281, "seccomp": 277, "init_module": 105, "kexec_load": 104, "swapon": 224,
        "setuid": 146, "add_key": 217,
    },
}  # fmt: skip
NUMBERS = _NUMBERS[platform.machine()]

NO_FILTER = {"seccomp": seccomp.NO_FILTER}


def _changed(**fields: Any) -> dict[str, Any]:
    """Walls of a container whose configuration differs in these."""
    return {"changes": fields}


def config(*, without: str = "", extra: str = "") -> str:
    """The jail's reviewed configuration with one line changed to false, or with a mount more."""
    text = CONFIG_FILE.read_text()
    if without:
        text = text.replace(f"{without}: true", f"{without}: false")
    return text + extra


@dataclass(frozen=True)
class Attack:
    """A script, what should stop it, and what the jail must lose for it to succeed."""

    name: str
    code: str
    enforced_by: str
    cases: tuple[str, ...] = ()
    """Of the tests' manifest."""
    ends_process: bool = False
    """Whether the kernel ends the process that asks, with SIGSYS."""
    walls: dict[str, Any] = field(default_factory=dict)
    """Fields of `Walls` that differ in the control."""
    config: str | None = None
    """The reviewed configuration as it is in the control, if it differs."""
    container: dict[str, Any] = field(default_factory=dict)
    """Fields of `ContainerWalls` that differ in the control of a runtime of containers."""
    open_in_gvisor: str = ""
    """Why this is not held where gVisor's kernel is the guest's, and what stands in its place."""
    control_code: str | None = None
    """What the control runs, if the wall can't be taken out: the same attack on something that is not walled off."""

    def is_held(self, done: Execution) -> bool:
        """Whether the attack was stopped."""
        if self.ends_process:
            return done.status is Status.BLOCKED_SYSCALL and not done.stdout.text
        return done.status is Status.SUCCEEDED and done.stdout.text == "HELD\n"

    def has_escaped(self, done: Execution) -> bool:
        """Whether the attack has succeeded, for sure."""
        if self.ends_process:
            return done.status is not Status.BLOCKED_SYSCALL and done.signal is None
        return done.stdout.text.startswith("ESCAPED")


_HEAD = "import ctypes, os, socket, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n"


def _system_call(name: str, arguments: str = "0, 0, 0, 0, 0", *, ends_process: bool = True) -> Attack:
    """Whether the kernel's own code for a call is reached: the filter answers ENOSYS, or ends the process."""
    return Attack(
        name=f"the system call {name}",
        code=_HEAD
        + f"r = libc.syscall({NUMBERS[name]}, {arguments})\ne = ctypes.get_errno() if r < 0 else 0\n"
        + f"print('HELD' if e == 38 and not {ends_process} else f'ESCAPED: reached the kernel, errno {{e}}')",
        enforced_by="seccomp",
        cases=("R10",),
        ends_process=ends_process,
        walls=NO_FILTER,
        container=BARE_CONTAINER,
    )


# Calls that end the process with SIGSYS: with the filter out, the kernel answers them.
FATAL_CALLS = tuple(
    _system_call(name)
    for name in NUMBERS
    if name
    not in ("clone3", "pidfd_open", "chroot", "execveat", "init_module", "kexec_load", "seccomp", "unshare", "mount")
)
FATAL_WITH_ARGUMENTS = (
    _system_call("unshare", "0x10000000, 0, 0, 0, 0"),
    _system_call("mount", "b'none', b'/tmp', b'tmpfs', 0, 0"),
    _system_call("chroot", "b'/tmp', 0, 0, 0, 0"),
    _system_call("execveat", "-1, b'', 0, 0, 0"),
    _system_call("init_module", "0, 0, b'', 0, 0"),
    _system_call("kexec_load", "0, 0, 0, 0, 0"),
    _system_call(
        "seccomp", "99, 0, 0, 0, 0"
    ),  # no such operation: the strict mode of 0 would end the process by itself
)
ANSWERED_CALLS = (_system_call("clone3", ends_process=False),)

_CONNECT = (
    _HEAD + "def reach(family, address):\n"
    "  s = socket.socket(family); s.settimeout(3)\n"
    "  try: s.connect(address)\n"
    "  except OSError as fault: return family != socket.AF_UNIX and fault.errno == 111  # refused by a host that was reached\n"
    "  return True\n"
)


def _network(name: str, probe: str) -> Attack:
    return Attack(
        name=name,
        code=_CONNECT
        + f"try: reached = {probe}\nexcept OSError: reached = False\n"
        + "print('ESCAPED: reached it' if reached else 'HELD')",
        enforced_by="network namespace, seccomp",
        cases=("R9",),
        walls=NO_FILTER,
        config=config(without="clone_newnet"),
        container={**BARE_CONTAINER, **_changed(network_mode="host")},
    )


NETWORK = (
    _network("a port on the host's loopback", "reach(socket.AF_INET, ('127.0.0.1', int(sys.argv[1])))"),
    _network("an abstract socket of the host", "reach(socket.AF_UNIX, chr(0) + sys.argv[2])"),
)

SOCKET_FAMILIES = tuple(
    Attack(
        name=f"a socket of the family {name}",
        code=_HEAD + f"try:\n  socket.socket({number}, socket.{kind}); print('ESCAPED: made one')\n"
        "except OSError as f: print('HELD' if f.errno == 101 else f'ESCAPED: reached the kernel, errno {f.errno}')",
        enforced_by="seccomp",
        cases=("R9", "R10"),
        walls=NO_FILTER,
        container=BARE_CONTAINER,
    )
    for name, number, kind in (
        ("INET", 2, "SOCK_STREAM"), ("INET6", 10, "SOCK_STREAM"), ("NETLINK", 16, "SOCK_RAW"),
        ("VSOCK", 40, "SOCK_STREAM"), ("ALG", 38, "SOCK_SEQPACKET"), ("PACKET", 17, "SOCK_RAW"),
    )
)  # fmt: skip

_HOST_PROC = config(without="clone_newpid").replace(
    'mount { dst: "/proc" fstype: "proc" rw: false nosuid: true nodev: true noexec: true }',
    'mount { src: "/proc" dst: "/proc" is_bind: true }',
)

PROCESSES = (
    Attack(
        name="a process outside the jail is seen",
        code=_HEAD + "pids = sorted(int(n) for n in os.listdir('/proc') if n.isdigit())\n"
        "print('HELD' if pids == [1, os.getpid()] else f'ESCAPED: {pids[:20]}')",
        enforced_by="pid namespace",
        cases=("R10", "R11"),
        config=_HOST_PROC,
        container=_changed(pid_mode="host"),
    ),
    Attack(
        name="a signal to a process outside the jail",
        code=_HEAD + "try: os.kill(int(sys.argv[3]), 0); print('ESCAPED: it is there')\n"
        "except ProcessLookupError: print('HELD')\nexcept PermissionError: print('ESCAPED: it is there')",
        enforced_by="pid namespace",
        cases=("R10",),
        config=_HOST_PROC,
        container=_changed(pid_mode="host"),
    ),
    Attack(
        name="shared memory of the host",
        code=_HEAD
        + "table = '/proc/sysvipc/shm'\n"
        + "segments = len(open(table).readlines()) - 1 if os.path.exists(table) else 0\n"
        + "print('ESCAPED: there is a segment' if segments else 'HELD')",
        enforced_by="ipc namespace",
        cases=("R11",),
        config=config(without="clone_newipc"),
        container=_changed(ipc_mode="host"),
    ),
    Attack(
        name="the name of the host",
        code=_HEAD + "print('HELD' if os.uname().nodename == 'spillbox' else f'ESCAPED: {os.uname().nodename}')",
        enforced_by="uts namespace",
        cases=("R11",),
        config=config(without="clone_newuts").replace('hostname: "spillbox"', ""),
        container=_changed(uts_mode="host"),
    ),
)

_SEARCH = (
    _HEAD + "found = []\n"
    "for top, folders, files in os.walk('/'):\n"
    "  if top in ('/proc', '/usr', '/opt'): folders[:] = []; continue\n"
    "  for f in files:\n"
    "    p = os.path.join(top, f)\n"
    "    if p.startswith('/workspace/scripts') or not os.path.isfile(p): continue\n"
    "    try: data = open(p, 'rb').read(100_000)\n"
    "    except OSError: continue\n"
    "    if sys.argv[4].encode() in data: found.append(p)\n"
    "print(f'ESCAPED: {found}' if found else 'HELD')"
)
_LEAK = {"environment": {"LEAK": SECRET, "PATH": "/opt/venv/bin"}}
READS = (
    Attack(
        name="a file of another workspace, or a secret of the service",
        code=_SEARCH,
        enforced_by="mount namespace, guest root",
        cases=("R11",),
        config=config(extra=f'\nmount {{ src: "{SECRET_PLACE}" dst: "/run/launcher" is_bind: true }}\n'),
        container=_changed(binds={SECRET_PLACE: {"bind": "/run/launcher", "mode": "ro"}}),
    ),
    Attack(
        name="the service's environment",
        code=_HEAD + "seen = ''.join(f'{k}={v}' for k, v in os.environ.items())\n"
        "try: seen += open('/proc/1/environ').read()\nexcept OSError: pass\n"
        "seen += open('/proc/self/environ').read()\n"
        "print('ESCAPED: it is there' if sys.argv[4] in seen else 'HELD')",
        enforced_by="an environment of named variables",
        cases=("R11",),
        walls=_LEAK,
        container=_LEAK,
    ),
)
WRITES = tuple(
    Attack(
        name=f"a write to {place}",
        code=_HEAD
        + f"try:\n  open({place + '/attack'!r}, 'w').write('x'); print('ESCAPED: written')\nexcept OSError: print('HELD')",
        enforced_by="read-only mounts",
        cases=("R8",),
        config=config(extra=f'\nmount {{ dst: "{place}" fstype: "tmpfs" rw: true }}\n'),
        container={"user": 0, **_changed(tmpfs={place: "size=1m"})},  # who still can't write where it is read-only
    )
    for place in ("/etc", "/usr/share", "/opt/venv/lib")
)

_REACH = (
    _HEAD + "reached = []\n"
    "for path in {paths}:\n"
    "  try: open(path, 'rb').read(1); reached.append(path)\n  except OSError as f:\n"
    "    if f.errno == 5: reached.append(path)\n"
)
_FIRST_MEMORY = (
    _REACH.format(paths="('/proc/1/mem',)") + "try: os.kill(1, 9)\nexcept OSError: pass\n"
    "import time; time.sleep(0.2)\n"
    "print(f'ESCAPED: {reached}' if reached else 'HELD')"
)
_FIRST_FILES = (
    _REACH.format(paths="('/proc/1/maps', '/proc/1/environ')")
    + "try: reached += os.listdir('/proc/1/fd')\nexcept OSError: pass\n"
    "print(f'ESCAPED: {reached}' if reached else 'HELD')"
)
PROCESS_ONE = (
    Attack(
        name="the memory or end of process 1",
        code=_FIRST_MEMORY,
        enforced_by="a process that is not dumpable, pid namespace",
        cases=("R10", "R11"),
        control_code=_FIRST_MEMORY.replace("/proc/1/", "/proc/self/").replace("os.kill(1, 9)", "pass"),
    ),
    Attack(
        name="descriptors and environment of process 1",
        code=_FIRST_FILES,
        enforced_by="a process that is not dumpable",
        cases=("R10", "R11"),
        control_code=_FIRST_FILES.replace("/proc/1/", "/proc/self/"),
        open_in_gvisor="its kernel shows them to a process of the same user; nothing there is secret, and what process 1 says "
        "bears a seal that no guest has",
    ),
)
DESCRIPTORS = Attack(
    name="a descriptor that was not given",
    code=_HEAD + "fds = sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1]\n"
    "targets = [os.readlink(f'/proc/self/fd/{n}') for n in fds]\n"
    "print('HELD' if fds == [0, 1, 2] and all(t.startswith('pipe:') for t in targets)\n"
    "      else f'ESCAPED: {targets}')",
    enforced_by="closing all but three",
    cases=("R11",),
)
DESCRIPTORS = replace(DESCRIPTORS, control_code="import os\nos.open('/etc/passwd', 0)\n" + DESCRIPTORS.code)
PRIVILEGES = Attack(
    name="a capability, or a gain of privileges by exec",
    code=_HEAD + "s = [l.split() for l in open('/proc/self/status').read().splitlines()]\n"
    "caps = [l[1] for l in s if l[0].startswith('Cap')]\n"
    "held = set(caps) == {'0' * 16} and os.getuid() != 0\n"
    "held = held and libc.prctl(39, 0, 0, 0, 0) == 1 and libc.prctl(21, 0, 0, 0, 0) == 2  # no new privileges; a filter\n"
    "print('HELD' if held else f'ESCAPED: {caps}')",
    enforced_by="user namespace, no capabilities, no-new-privileges",
    cases=("R10",),
    config=config().replace("keep_caps: false", "keep_caps: true"),
    container={"user": 0, **_changed(cap_drop=[])},
)


def _refused(name: str, code: str, errors: str) -> Attack:
    """What the kernel would do for a guest, but for the filter."""
    return Attack(
        name=name,
        code=_HEAD
        + f"import fcntl, struct\ntry:\n  {code}; print('ESCAPED: done')\nexcept OSError as fault:\n"
        + f"  print('HELD' if fault.errno in {errors} else f'ESCAPED: reached the kernel, errno {{fault.errno}}')",
        enforced_by="seccomp",
        cases=("R10",),
        walls=NO_FILTER,
        container=BARE_CONTAINER,
    )


SHARED = (
    _refused(
        "a lock that every run sees",
        "fcntl.fcntl(open('/dev/null', 'rb+', 0), 37, struct.pack('hhqqi4x', 0, 0, 0, 1, 0))",
        "(22,)"
    ),
    _refused(
        "a packet filter on a socket",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].setsockopt(1, 26, struct.pack('HxxxxxxP', 0, 0))",
        "(92,)"
    ),
    _refused("the priority of process 1", "os.setpriority(os.PRIO_PROCESS, 1, 19)", "(1,)"),
    _refused("the processors of process 1", "os.sched_setaffinity(1, os.sched_getaffinity(0))", "(1,)"),
    Attack(
        name="a device node of the host",
        code=_HEAD + "reached = False\n"
        "for name in os.listdir('/dev'):\n"
        "  node = os.stat('/dev/' + name, follow_symlinks=False)\n"
        "  if f'{node.st_dev}-{node.st_ino}' != sys.argv[5]: continue\n"
        "  try: os.utime('/dev/' + name); reached = True\n  except OSError: pass\n"
        "print('ESCAPED: done' if reached else 'HELD')",
        enforced_by="read-only mounts, or nodes of the container's own",
        cases=("R10",),
        config=config().replace('dst: "/dev/null" is_bind: true', 'dst: "/dev/null" is_bind: true rw: true'),
        container=_changed(binds={"/dev/null": {"bind": "/dev/of-the-host", "mode": "rw"}}),
    ),
)  # fmt: skip

ATTACKS: tuple[Attack, ...] = (
    *NETWORK,
    *SOCKET_FAMILIES,
    *SHARED,
    *PROCESSES,
    *PROCESS_ONE,
    DESCRIPTORS,
    *READS,
    *WRITES,
    PRIVILEGES,
    *ANSWERED_CALLS,
    *FATAL_CALLS,
    *FATAL_WITH_ARGUMENTS,
)
