"""Both ends of the wires into a jail: SOCK_SEQPACKET pairs, so that a message comes whole or not at all.

Service and process 1 of a jail, once for each jail:

    jail -> service   BORN                                                      (warm only)
    service -> jail   FILTERS: seccomp programs                                 (warm: it is in its control group now)
    jail -> service   READY, with descriptors of /workspace and /run/report     (no guest code has run)
    service -> jail   FOR: whose read-only folders to mount                     (warm only; the workspace is being filled)
    service -> jail   GO: what to run                                           (the workspace is filled)
    jail -> service   BEGUN                                                     (the script runs)
    jail -> service   DONE: the script's wait status, processor time, memory    (nothing of the guest lives any more)
    service -> jail   AGAIN: make a process for a program of ours, over what the guest left; then from GO on as before
    either side closes: the other gives up; process 1 leaves, and the kernel kills everything in the jail

Process 1 and the script's process, and that of the program of ours:

    script -> first   STANDING                                                  (it has no privilege any more)
    first -> script   GO, as it came

Service and a launcher:

    launcher -> service   UP and the names of the modules that it has imported
    service -> launcher   FILTERS: the program for it and for process 1 of its jails
    service -> launcher   SPAWN and a shape, with descriptors of a jail's wire, stdout and stderr; again and again

Only process 1 holds the jail's end, and only the launcher its own. The script's process closes what it has before guest
code runs, and it can't trace or read process 1. What the service still reads after GO it treats as hostile: one
message, of one exact form, after BEGUN.
"""

BORN, READY, STANDING, BEGUN, AGAIN = b"BORN 1", b"READY 1", b"STANDING 1", b"BEGUN", b"AGAIN"
MAX_MESSAGE_BYTES = 128 * 1024

FORKED, FRESH = "", "/"
"""Interpreters that GO can name: process 1's own, and, in a container, one that has imported nothing."""

_FILTERS, _FOR, _SPAWN, _UP = b"FILTERS ", b"FOR ", b"SPAWN ", b"UP 1 "


def encode_filters(first: bytes, script: bytes) -> bytes:
    """FILTERS as bytes: the programs for process 1 and for the script's process; an empty one means none more."""
    return _FILTERS + len(first).to_bytes(4, "big") + first + script


def decode_filters(message: bytes) -> tuple[bytes, bytes]:
    """The programs for process 1 and for the script's process; raises ValueError on anything else."""
    if not message.startswith(_FILTERS):
        raise ValueError("not a FILTERS message")
    start = len(_FILTERS) + 4
    end = start + int.from_bytes(message[len(_FILTERS) : start], "big")
    return message[start:end], message[end:]


def encode_for(folder: str) -> bytes:
    """FOR as bytes; ``folder`` is the workspace's, under what the launcher has mounted."""
    return _FOR + folder.encode()


def decode_for(message: bytes) -> str:
    """The folder; raises ValueError on anything else than FOR."""
    if not message.startswith(_FOR):
        raise ValueError("not a FOR message")
    return message.removeprefix(_FOR).decode()


def encode_go(cpu_seconds: int, interpreter: str, script_path: str, arguments: tuple[str, ...]) -> bytes:
    """GO as bytes; the strings hold no NUL, and ``interpreter`` is one of `FORKED` and `FRESH`."""
    parts = (str(cpu_seconds), interpreter, script_path, *arguments)
    return b"\0".join(text.encode("utf-8", "surrogateescape") for text in parts)


def decode_go(message: bytes) -> tuple[int, str, str, list[str]]:
    """The limit of processor time in seconds, the interpreter, the script's path and its arguments."""
    cpu_seconds, interpreter, *words = (part.decode("utf-8", "surrogateescape") for part in message.split(b"\0"))
    return int(cpu_seconds), interpreter, words[0], words[1:]


def encode_done(wait_status: int, cpu_seconds: float, max_memory_bytes: int) -> bytes:
    """DONE as bytes: a wait(2) status, and the use of the processes that were waited for."""
    return b"DONE %d %d %d" % (wait_status, cpu_seconds * 1_000_000, max_memory_bytes)


def decode_done(message: bytes) -> tuple[int, float, int]:
    """Wait status, processor seconds, bytes of memory; raises ValueError on anything else than an honest DONE."""
    word, *numbers = message.split(b" ")
    if word != b"DONE" or len(numbers) != 3 or not all(n.isdigit() and len(n) < 16 for n in numbers):
        raise ValueError("not a DONE message")
    wait_status, cpu_microseconds, max_memory_bytes = map(int, numbers)
    if wait_status > 0xFFFF:
        raise ValueError("not a wait status")
    return wait_status, cpu_microseconds / 1_000_000, max_memory_bytes


def encode_up(modules: list[str]) -> bytes:
    """UP as bytes, with the names of top-level modules."""
    return _UP + " ".join(modules).encode()


def decode_up(message: bytes) -> list[str]:
    """The names; raises ValueError on anything else than UP."""
    if not message.startswith(_UP):
        raise ValueError("not an UP message")
    return message.removeprefix(_UP).decode().split()


def encode_spawn(shape: dict[str, object]) -> bytes:
    """SPAWN as bytes; see `sandbox.runtimes.policy` for what is in a shape."""
    import json

    return _SPAWN + json.dumps(shape).encode()


def decode_spawn(message: bytes) -> dict[str, object]:
    """The shape of the jail; raises ValueError on anything else than SPAWN."""
    import json

    if not message.startswith(_SPAWN):
        raise ValueError("not a SPAWN message")
    shape: dict[str, object] = json.loads(message.removeprefix(_SPAWN))
    return shape
