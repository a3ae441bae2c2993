"""Process 1 of a container, for one workspace. Usage: python -S worker.pyc, its stdin and stdout being the service's stream

It imports the libraries when they are first wanted, and forks a process for each run of a script, one after another. The
container is the wall of a run: no network, a read-only root, no capability, and nothing of another workspace in it.
"""

import json
import os
import resource
import select
import signal
import sys
import time

import first
import frames
import init
import kernel
import run
import wire
import worker_tree

_PLACES = {worker_tree.WORKSPACE: 0o755, worker_tree.REPORT: 0o755, "/tmp": 0o1777, "/dev/shm": 0o1777}
_ANSWERED = (signal.SIGCHLD, signal.SIGINT, signal.SIGKILL, signal.SIGPIPE, signal.SIGSTOP, signal.SIGXFSZ)
_READ_BYTES = 64 * 1024
_LOOK_SECONDS = 0.1
_GROUPS = "/sys/fs/cgroup"
# The kernel's files of the two versions of control groups, by what is counted there: file, and field if it has several.
_COUNTED = {
    "cpu": (("cpuacct/cpuacct.usage", None, 1e-9), ("cpu.stat", "usage_usec", 1e-6)),
    "oom_kills": (("memory/memory.oom_control", "oom_kill", 1), ("memory.events", "oom_kill", 1)),
    "refused_forks": (("pids/pids.events", "max", 1), ("pids.events", "max", 1)),
}


def main():
    stream = frames.Stream(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    init.do_what_site_does()
    wake_read = first.become_first()
    _answer_signals(signal.SIG_IGN)  # gVisor does not shield process 1 from its guest by itself, as Linux does
    worker = _Worker(stream, wake_read)
    worker.say_up()
    while True:
        kind, payload = stream.receive()
        if kind == frames.SETUP:
            worker.setup = json.loads(payload)
        elif kind == frames.FILTER:
            worker.filter = payload
        elif kind == frames.PRELOAD:
            __import__(f"preload_{payload.decode()}").preload()
            worker.say_up()
        elif kind == frames.FOLDER:
            worker.filling.folder(payload)
        elif kind == frames.FILE:
            worker.filling.file(payload)
        elif kind == frames.DATA:
            worker.filling.data(payload)
        elif kind == frames.FILLED:
            worker.filling.finish()
            stream.send(frames.FILLED, b"%d" % worker.filling.error)
        elif kind == frames.GO:
            worker.run(payload)
        elif kind == frames.LIST:
            worker.list()
        elif kind == frames.GET:
            for part in worker_tree.contents(payload.split(b"\0")):
                stream.send(frames.END if part is None else frames.DATA, part or b"")
        elif kind == frames.WIPE:
            worker.wipe()
        elif kind != frames.KILL:  # one that came too late
            raise ValueError(f"a frame of the kind {kind}")


def _answer_signals(how):
    """All but those that Python has an answer of its own to, and those that none can be given to."""
    for number in range(1, 32):
        if number not in _ANSWERED:
            signal.signal(number, how)


class _Worker:
    def __init__(self, stream, wake_read):
        self.setup = {}
        self.filter = b""
        self.filling = worker_tree.Filling()
        self._free = _free()
        self._stream = stream
        self._wake_read = wake_read
        self._counted = {what: found for what in _COUNTED if (found := _find(_COUNTED[what])) is not None}

    def say_up(self):
        """Tell what is imported, how much memory that takes, and whether the kernel counts for the container."""
        import gc

        run.rehearse()
        gc.freeze()
        names = sorted({name.partition(".")[0] for name in sys.modules} - set(run.OURS))
        facts = {"modules": names, "bytes": _pages()[1] * resource.getpagesize(), "counts": bool(self._counted)}
        self._stream.send(frames.UP, json.dumps(facts).encode())

    def run(self, message):
        """One script, from its fork to the end of all that it left."""
        cpu_seconds = wire.decode_go(message)[0]
        before = self._counters()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        idle_bytes = _pages()[1] * resource.getpagesize()
        out, out_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        err, err_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for end in (out_end, err_end):
            os.set_blocking(end, True)
        child, gate = first.fork_script(lambda: self._give_everything_up(out_end, err_end))
        os.close(out_end)
        os.close(err_end)
        self._stream.send(frames.STANDS)
        kind, self._stream.seal = self._stream.receive()
        if kind != frames.SEAL:
            raise ValueError(f"a frame of the kind {kind}")
        gate.send(message)
        look = _Look(self, cpu_seconds, before, idle_bytes)
        wait_status, peak_kib = self._watch(child, {out: frames.OUT, err: frames.ERR}, look)
        gate.close()
        for fd, kind in ((out, frames.OUT), (err, frames.ERR)):
            while self._forward(fd, kind):
                pass
            os.close(fd)
        if not self._counted:
            look.look_at_files(worker_tree.count_entries_at_last)
        after = self._counters()
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = {
            "wait_status": wait_status,
            "cpu_seconds": (
                after["cpu"] - before["cpu"]  # a script can keep what its children use from being added up
                if self._counted
                else now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
            ),
            "max_memory_bytes": max(0, peak_kib * 1024 - idle_bytes, look.peak_bytes),
            "stopped": look.stopped,
            "oom_kills": after.get("oom_kills", 0) - before.get("oom_kills", 0),
            "refused_forks": after.get("refused_forks", 0) - before.get("refused_forks", 0),
            "has_too_many_files": look.has_too_many_files,
            "is_full": look.has_too_many_files or worker_tree.is_full(),
        }
        for name, data in worker_tree.report():
            self._stream.send(frames.FILE, frames.encode_entry(0, len(data), 0, 0, name))
            for start in range(0, len(data), frames.MAX_FRAME_BYTES // 2):
                self._stream.send(frames.DATA, data[start : start + frames.MAX_FRAME_BYTES // 2])
        self._stream.send(frames.DONE, json.dumps(done).encode())

    def _watch(self, child, pipes, look):
        """Forward what is printed until the script has ended, then end all else; gives its wait status and the peak in KiB."""
        poll = select.poll()
        for fd in (self._stream.read_fd, self._wake_read, *pipes):
            poll.register(fd, select.POLLIN)
        next_look = time.monotonic() + _LOOK_SECONDS
        wait_status, peak_kib = None, 0
        while wait_status is None:
            if self._stream.has_more():
                self._stream.receive()  # KILL: there is nothing else to say now
                look.stop("killed")
            for fd, _ in poll.poll(max(0, next_look - time.monotonic()) * 1000 + 1):
                if fd in pipes:
                    if not self._forward(fd, pipes[fd]):
                        poll.unregister(fd)
                elif fd == self._wake_read:
                    self._wake()
                else:
                    self._stream.read_more()
            if time.monotonic() >= next_look:
                look.look()
                next_look = time.monotonic() + _LOOK_SECONDS
            for pid, status, kib in first.ended():
                peak_kib = max(peak_kib, kib)
                if pid == child:
                    wait_status = status
        return wait_status, max(peak_kib, first.bury_all())

    def _wake(self):
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:  # gVisor lets a guest read it too
            pass

    def _forward(self, fd, kind):
        """Pass on what a pipe has now; False if that is nothing, or its end."""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._stream.send(kind, data)
            self._stream.flush()
        return bool(data)

    def _give_everything_up(self, out_end, err_end):
        """In the script's process: its own streams, the limits, the filter."""
        _answer_signals(signal.SIG_DFL)
        os.setsid()
        first.end_stdin()
        os.dup2(out_end, 1)
        os.dup2(err_end, 2)
        kernel.set_dumpable(1)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # the kernel ends the script before process 1
        for name, value in self.setup["rlimits"].items():
            kind = getattr(resource, f"RLIMIT_{name.upper()}")
            if kind == resource.RLIMIT_AS:
                value += _pages()[0] * resource.getpagesize()  # what it has of process 1 is not the script's
            resource.setrlimit(kind, (value, value))
        os.chdir(worker_tree.WORKSPACE)
        kernel.load_filter(self.filter)
        run.rehearse()

    def _counters(self):
        return {what: _value(*where) for what, where in self._counted.items()}

    def list(self):
        """Tell of everything in the workspace."""
        leave_out = [name.encode() for name in self.setup["read_only"]]
        for path, status in worker_tree.entries(leave_out):
            facts = (status.st_mode, status.st_size, status.st_ino, status.st_mtime_ns, path)
            self._stream.send(frames.ENTRY, frames.encode_entry(*facts))
        self._stream.send(frames.END)

    def wipe(self):
        """Make the places that a guest could write to empty again."""
        for place, mode in _PLACES.items():
            worker_tree.wipe(place, mode, self.setup["read_only"] if place == worker_tree.WORKSPACE else ())
        self.filling = worker_tree.Filling()
        # What is gone by name may still be held, as by sockets that hold each other, which gVisor does not find.
        is_clean = _free() == self._free
        self._stream.send(frames.WIPED, b"1" if is_clean else b"0")
        self._stream.seal = b""


class _Look:
    """What is looked at ten times a second while a script runs; what the kernel does not count, by the processes themselves."""

    def __init__(self, worker, cpu_seconds, before, idle_bytes):
        self._worker = worker
        self._idle_bytes = idle_bytes
        self._cpu_seconds = cpu_seconds
        self._before = before
        self._looks = 0
        self._saw_kill = False
        self.peak_bytes = 0
        self.stopped = ""
        self.has_too_many_files = False

    def look(self):
        self._looks += 1
        counters = self._worker._counters()
        if not counters:
            self._look_at_processes()
            return
        if counters["cpu"] - self._before["cpu"] > self._cpu_seconds:
            self.stop("cpu")
        if counters["oom_kills"] > self._before["oom_kills"]:
            if self._saw_kill:  # at the second look: the main process may have been ending by itself
                self.stop("memory")
            self._saw_kill = True

    def _look_at_processes(self):
        own = str(os.getpid())
        others = [name for name in os.listdir("/proc") if name.isdigit() and name != own]
        # What a process has of this one, of which it is a fork, is there once.
        used = sum(max(0, _resident_bytes(name) - self._idle_bytes) for name in others)
        self.peak_bytes = max(self.peak_bytes, used)
        if used > self._worker.setup["memory_bytes"]:
            self.stop("memory")
        if self._looks % 10 == 0:
            self.look_at_files(worker_tree.count_entries)

    def look_at_files(self, count):
        most, read_only = self._worker.setup["files"], self._worker.setup["read_only"]
        for place in _PLACES:
            if count(place, most + 1, read_only if place == worker_tree.WORKSPACE else ()) > most:
                self.has_too_many_files = True
                self.stop("files")

    def stop(self, why):
        """Kill everything, and note the first reason."""
        self.stopped = self.stopped or why
        first.kill_all()


def _find(choices):
    for file, field, unit in choices:
        if os.path.exists(f"{_GROUPS}/{file}"):
            return f"{_GROUPS}/{file}", field, unit
    return None


def _value(path, field, unit):
    with open(path) as file:
        for line in file:
            name, _, value = line.partition(" ")
            if field is None or name == field:
                return int(value or name) * unit
    return 0


def _free():
    """Blocks and inodes that are free in each of the places that a guest can write to."""
    return [(space.f_bavail, space.f_ffree) for space in map(os.statvfs, _PLACES)]


def _pages():
    """Of this process: of its address space, and in memory."""
    with open("/proc/self/statm") as file:
        return [int(word) for word in file.read().split()[:2]]


def _resident_bytes(pid):
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


if __name__ == "__main__":
    main()
