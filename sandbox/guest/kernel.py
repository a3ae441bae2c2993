"""Calls of the kernel that Python has no function for, and what they need. By `_ctypes` alone: `ctypes` takes 2 ms to import.

Numbers are those of the kernel's own headers: linux/prctl.h, linux/sched.h, linux/mount.h, linux/capability.h,
asm-generic/mman-common.h.
"""

import _ctypes
import errno
import os
import sys

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 4, 22, 24
_SECCOMP_MODE_FILTER = 2

CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND = 1, 2, 4, 8, 4096
MNT_DETACH = 2

MADV_COLLAPSE = 25

_CAPABILITY_VERSION_3 = 0x20080522
_MOST_CAPABILITIES = 64
_BYTES_OF_AN_INSTRUCTION = 8


class _Int(_ctypes._SimpleCData):
    _type_ = "i"


class _Long(_ctypes._SimpleCData):
    _type_ = "l"


class _UnsignedShort(_ctypes._SimpleCData):
    _type_ = "H"


class _Bytes(_ctypes._SimpleCData):
    _type_ = "z"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Int


class _FilterProgram(_ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = [("length", _UnsignedShort), ("instructions", _Bytes)]


_libc = _ctypes.dlopen(None, 0)
_functions = {}


def call(name, *arguments):
    """Call a function of the C library with whole numbers, bytes (as a pointer) and None; raises OSError when it gives -1."""
    function = _functions.get(name)
    if function is None:
        function = _functions[name] = _Function(_ctypes.dlsym(_libc, name))
    result = function(*(_Long(a) if isinstance(a, int) else a for a in arguments))
    if result == -1:
        error = _ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def set_dumpable(value):
    """Whether other processes of the same user may trace and read this one, and look at its files under /proc."""
    call("prctl", PR_SET_DUMPABLE, value, 0, 0, 0)


def load_filter(program):
    """Bind this process, and all that it starts, to a seccomp filter (struct sock_filter[]); nothing to do if it is empty.

    Raises OSError if the kernel does not take it.
    """
    if program:
        packed = _FilterProgram(len(program) // _BYTES_OF_AN_INSTRUCTION, program)
        call("prctl", PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _ctypes.byref(packed), 0, 0)


def bound_capabilities():
    """Take every capability out of what this process and all that it starts could ever gain by executing a program."""
    for number in range(_MOST_CAPABILITIES):
        try:
            call("prctl", PR_CAPBSET_DROP, number, 0, 0, 0)
        except OSError as fault:
            if fault.errno == errno.EINVAL:  # the kernel knows no more
                return
            raise


def drop_capabilities():
    """Give up every capability that this process has."""
    call("capset", _CAPABILITY_VERSION_3.to_bytes(4, sys.byteorder) + bytes(4), bytes(24))
