"""Both ends of the wire between the service and process 1 of a jail: a SOCK_SEQPACKET pair, four messages.

    jail -> service   READY, with descriptors of the folders /workspace and /run/report    (before any guest code runs)
    service -> jail   GO: the script's path and its arguments                              (the workspace is filled)
    jail -> service   DONE: the script's wait status, processor time and memory
    either side closes: the other gives up; process 1 leaves, and the kernel kills everything in the jail

Only process 1 holds the jail's end. The script's process closes it before guest code runs, and process 1 can't be
traced or read. What the service still reads after GO it treats as hostile: at most one message, of one exact form.
"""

READY = b"READY 1"
MAX_MESSAGE_BYTES = 128 * 1024


def encode_go(script_path: str, arguments: tuple[str, ...]) -> bytes:
    """GO as bytes; the strings hold no NUL."""
    return b"\0".join(text.encode("utf-8", "surrogateescape") for text in (script_path, *arguments))


def decode_go(message: bytes) -> tuple[str, list[str]]:
    """The script's path and its arguments."""
    script_path, *arguments = (part.decode("utf-8", "surrogateescape") for part in message.split(b"\0"))
    return script_path, arguments


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
