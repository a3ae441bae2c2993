"""Both ends of the stream between the service and process 1 of a container: frames, each a kind, a length and a payload.

    worker  -> service   UP: what it is                                    (no guest code has run)
    service -> worker    SETUP: limits; FILTER: the script's seccomp program
    service -> worker    PRELOAD                                           UP again
    service -> worker    FOLDER, FILE and its DATA, again and again; FILLED      FILLED: 0, or an error number
    service -> worker    GO                                                STANDS: the script's process, which has run nothing yet
    service -> worker    SEAL: a secret that each later frame of the worker begins with, until WIPED
                                                                           OUT and ERR as they come
    service -> worker    KILL, if it must end before its time
    worker  -> service   FILE and its DATA for each of the report; DONE: how it ended
                                                                           (nothing of the guest lives any more)
    service -> worker    LIST                                              ENTRY for each, END
    service -> worker    GET: paths, with a zero byte between              DATA and END for each
    service -> worker    WIPE                                              WIPED: 1 if all is as it was before FOLDER, else 0
    either side closes: the other gives up

A container's standard streams are all that every engine of containers carries, so it is not the wire of a jail. Only
process 1 holds the container's end. What an end sends leaves when it waits for the other: a frame alone is a journey of
its own through the engine. Where a kernel lets a guest open descriptors of process 1 by /proc, as gVisor's does, it
could write there: hence the seal, which comes after the script's process was forked, so that it is in no memory of the
guest's. The service treats what it reads as hostile all the same: kinds are expected, lengths bounded.
"""

import os

HEAD_BYTES = 5
MAX_FRAME_BYTES = 256 * 1024
FLUSH_BYTES = 64 * 1024
MAX_REPORT_FILES, MAX_REPORT_BYTES = 16, 1 << 20
"""Files of a run's report, and bytes of each."""

MAX_FILES_AT_ONCE = 24
"""In a GET: so many of the longest paths (32 names of 255 bytes) fit into a frame."""

(
    UP, SETUP, FILTER, PRELOAD, FOLDER, FILE, DATA, FILLED, GO, STANDS, SEAL, OUT, ERR, KILL, DONE, LIST, ENTRY, END, GET, WIPE,
    WIPED,
) = range(1, 22)  # fmt: skip

_NUMBERS = ((4, False), (8, False), (8, False), (8, True))  # bytes and sign of mode, size, inode, time in ns


def encode(kind: int, payload: bytes = b"") -> bytes:
    """A frame as bytes."""
    return kind.to_bytes(1, "big") + len(payload).to_bytes(4, "big") + payload


def decode_head(head: bytes) -> tuple[int, int]:
    """Kind and length of a frame; raises ValueError if it is longer than any is."""
    length = int.from_bytes(head[1:], "big")
    if length > MAX_FRAME_BYTES:
        raise ValueError("a frame is too long")
    return head[0], length


def encode_entry(mode: int, size: int, inode: int, modified_ns: int, path: bytes) -> bytes:
    """The payload of FILE and ENTRY: numbers of stat(2), and the path as bytes, from the workspace's folder."""
    modified_ns = max(-(2**63), min(2**63 - 1, modified_ns))  # a guest may give a file any time
    numbers = zip((mode, size, inode, modified_ns), _NUMBERS)
    return b"".join(value.to_bytes(count, "big", signed=signed) for value, (count, signed) in numbers) + path


def decode_entry(payload: bytes) -> tuple[int, int, int, int, bytes]:
    """Mode, size, inode, time in ns, and the path; raises ValueError if it is cut."""
    values: list[int] = []
    start = 0
    for count, signed in _NUMBERS:
        values.append(int.from_bytes(payload[start : start + count], "big", signed=signed))
        start += count
    if len(payload) <= start:
        raise ValueError("an entry is cut")
    mode, size, inode, modified_ns = values
    return mode, size, inode, modified_ns, payload[start:]


class Stream:
    """Process 1's end, over two descriptors."""

    def __init__(self, read_fd, write_fd):
        self.read_fd = read_fd
        self._write_fd = write_fd
        self._unread = bytearray()
        self._unsent = bytearray()
        self.seal = b""

    def receive(self):
        """The next frame; process 1 leaves when there is none, and the kernel kills all else in its container."""
        kind, length = decode_head(self._exactly(HEAD_BYTES))
        return kind, self._exactly(length)

    def _exactly(self, count):
        while len(self._unread) < count:
            self.flush()
            self.read_more()
        data = bytes(self._unread[:count])
        del self._unread[:count]
        return data

    def has_more(self):
        """Whether something is read that was not received: `read_fd` does not tell of it."""
        return bool(self._unread)

    def read_more(self):
        """Wait for what comes next."""
        data = os.read(self.read_fd, FLUSH_BYTES)
        if not data:
            os._exit(0)
        self._unread += data

    def send(self, kind, payload=b""):
        """Send a frame, with the next `flush` or `receive` if it is short; blocks while the service does not read."""
        self._unsent += encode(kind, self.seal + payload)
        if len(self._unsent) >= FLUSH_BYTES:
            self.flush()

    def flush(self):
        """Let all that was sent leave."""
        with memoryview(self._unsent) as left:
            sent = 0
            while sent < len(left):
                sent += os.write(self._write_fd, left[sent:])
        self._unsent.clear()
