"""How much of the host's disk the service may fill."""

import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sandbox.errors import ServiceFull, SpillboxError, TenantFull
from sandbox.tenants import tenant_of

_MEASURED_SECONDS = 600
_MEASURED_AGAIN_SECONDS = 5


class Quota:
    """Bytes that may be used.

    What is used is measured now and then, and counted up between; before anything is refused it is measured again.
    """

    def __init__(self, most_bytes: int, measure: Callable[[], int], full: Callable[[], SpillboxError]) -> None:
        self._most_bytes = most_bytes
        self._measure = measure
        self._full = full
        self._lock = threading.Lock()
        self._used = 0
        self._reserved = 0
        self._measured_at = float("-inf")

    def take(self, count: int) -> None:
        """Count bytes that are about to be written; raises ``full`` if they have no room."""
        with self._lock:
            if self._left(count) < count:
                raise self._full()
            self._used += count

    def note(self, count: int) -> None:
        """Count bytes that are written already, or, below 0, that are gone."""
        with self._lock:
            self._used += count

    def reserve(self, most: int) -> int:
        """Keep others from room for as many bytes as there is room for, at most ``most``, until `give_back`."""
        with self._lock:
            reserved = max(0, min(most, self._left(most)))
            self._reserved += reserved
            return reserved

    def give_back(self, reserved: int) -> None:
        """What was reserved is written and noted, or will not be written."""
        with self._lock:
            self._reserved -= reserved

    def _left(self, count: int) -> int:
        age = time.monotonic() - self._measured_at
        taken = self._used + self._reserved
        if age > _MEASURED_SECONDS or (taken + count > self._most_bytes and age > _MEASURED_AGAIN_SECONDS):
            self._used, self._measured_at = self._measure(), time.monotonic()
        return self._most_bytes - self._used - self._reserved


class Disk:
    """What may be written below a folder: within a quota and that of each tenant, with room on its file system left to others."""

    def __init__(
        self, folder: Path, *, quota_bytes: int | None = None, spare_bytes: int = 0, tenant_bytes: int | None = None,
        tenant_used: Callable[[str], int] = lambda _: 0,
    ) -> None:  # fmt: skip
        """``tenant_used`` measures what a tenant has; it may take long."""
        self._folder = folder
        self._spare_bytes = spare_bytes
        self._tenant_bytes = tenant_bytes
        self._tenant_used = tenant_used
        self.quota: Quota | None = None
        self._of_tenants: dict[str, Quota] = {}
        if quota_bytes is not None:
            full = partial(
                ServiceFull,
                f"The service may use {quota_bytes:,} bytes of disk, and they are used up. The operator can make room "
                "with `spillbox clean`, or raise SPILLBOX_DISK_BYTES.",
            )
            self.quota = Quota(quota_bytes, partial(used_bytes, folder), full)

    def of(self, tenant: str) -> "TenantDisk":
        """The disk as a tenant may fill it."""
        if self._tenant_bytes is None:
            return TenantDisk(self, None)
        if tenant not in self._of_tenants:
            full = partial(
                TenantFull,
                f"This tenant may hold {self._tenant_bytes:,} bytes in all its workspaces and attachments, and they are used up. "
                "Delete files that are not needed any more (delete_file, in other workspaces too; list_files shows sizes); "
                "results/ and errors/ go by themselves when their time is over. The operator can raise SPILLBOX_TENANT_DISK_BYTES.",
            )
            quota = Quota(self._tenant_bytes, partial(self._tenant_used, tenant), full)
            return TenantDisk(self, self._of_tenants.setdefault(tenant, quota))
        return TenantDisk(self, self._of_tenants[tenant])

    def take(self, count: int) -> None:
        """Count bytes that are about to be written; raises `ServiceFull` if they have no room."""
        if self._spare_bytes:
            free = os.statvfs(self._folder)
            if free.f_bavail * free.f_frsize < count + self._spare_bytes:
                raise ServiceFull(
                    f"The disk of the service is nearly full: less than {self._spare_bytes:,} bytes would be left. "
                    "The operator can make room with `spillbox clean`, or by removing workspaces."
                )
        if self.quota is not None:
            self.quota.take(count)


class TenantDisk:
    """The disk of a service, as one tenant may fill it."""

    def __init__(self, disk: Disk, quota: Quota | None) -> None:
        self._disk = disk
        self._quota = quota

    def take(self, count: int) -> None:
        """Count bytes that are about to be written; raises `TenantFull` or `ServiceFull` if they have no room."""
        if self._quota is not None:
            self._quota.take(count)
        try:
            self._disk.take(count)
        except ServiceFull:
            if self._quota is not None:
                self._quota.note(-count)
            raise

    def note(self, count: int) -> None:
        """Count bytes that are written already, or, below 0, that are gone."""
        for quota in (self._quota, self._disk.quota):
            if quota is not None:
                quota.note(count)

    def note_equal(self, count: int, *, of_tenant: bool, of_service: bool) -> None:
        """Count bytes no more whose equals the tenant, or the service, had already: they are kept once."""
        if of_tenant and self._quota is not None:
            self._quota.note(-count)
        if of_service and self._disk.quota is not None:
            self._disk.quota.note(-count)

    @contextmanager
    def reserving(self) -> Iterator[Callable[[int], int]]:
        """Gives a function to call once: how many of so many more bytes the tenant has room for, kept until the ``with`` ends."""
        reserved = 0

        def reserve(most: int) -> int:
            nonlocal reserved
            if self._quota is None:
                return most
            reserved = self._quota.reserve(most)
            return reserved

        try:
            yield reserve
        finally:
            if self._quota is not None:
                self._quota.give_back(reserved)

    @contextmanager
    def taking(self) -> Iterator[Callable[[int], None]]:
        """As `take`, for what is written in parts: if the ``with`` fails, all of it counts no more."""
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            self.take(count)
            taken += count

        try:
            yield take
        except BaseException:
            self.note(-taken)
            raise


class BoundedFile(io.BufferedRandom):
    """A file over a descriptor, which stays open, that asks before it grows: ``admit`` gets its new size and the difference."""

    def __init__(self, fd: int, admit: Callable[[int, int], None]) -> None:
        super().__init__(_BoundedRaw(fd, admit))


class _BoundedRaw(io.FileIO):
    def __init__(self, fd: int, admit: Callable[[int, int], None]) -> None:
        super().__init__(fd, "r+b", closefd=False)
        self._admit = admit
        self._size = 0

    def write(self, data: Any) -> int:
        end = self.tell() + len(data)
        if end > self._size:
            self._admit(end, end - self._size)
            self._size = end
        return super().write(data)


def used_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(top, name)).st_size  # noqa: PTH118  a Path for each file costs more than its size
            except OSError:
                continue
    return total


def used_of_tenant(workspaces: Path, tenant: str) -> int:
    """Bytes of all files of a tenant's workspaces; of those that have not got their place yet, none."""
    return sum(used_bytes(folder / "files") for folder in workspaces.iterdir() if tenant_of(folder.name) == tenant)
