"""Binds itself to a seccomp filter and becomes another program. Usage: python -S enter.pyc FILTER_FD COMMAND [ARGUMENT …]"""

import _signal
import os
import sys

import kernel


def main():
    filter_fd, command = int(sys.argv[1]), sys.argv[2:]
    with open(filter_fd, "rb") as file:
        program = file.read()
    for ignored in (_signal.SIGPIPE, _signal.SIGXFSZ):  # by Python, for itself
        _signal.signal(ignored, _signal.SIG_DFL)
    kernel.load_filter(program)
    try:
        os.execvp(command[0], command)  # noqa: S606  what this program is for
    except OSError as fault:
        shown = "Behind its walls there are only /usr and the folders of `read` and `write`."
        os.write(2, f"{command[0]}: {fault.strerror}. {shown}\n".encode("utf-8", "surrogateescape"))
        os._exit(127)


if __name__ == "__main__":
    main()
