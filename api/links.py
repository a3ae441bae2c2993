"""Links that open without the key, for a while: a browser that downloads an attachment sends no header."""

import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from urllib.parse import parse_qs

from pydantic import SecretStr

from sandbox.backup import LINK_SECRET

_SIGNED_PARTS = ("attachments", "tables")


class Links:
    """Signs and checks links to attachments and tables; without a secret nothing needs a signature."""

    def __init__(self, find_secret: Callable[[], SecretStr | None], *, seconds: int, public_url: str = "") -> None:
        """``find_secret`` is asked until it gives one: a first key can be made while the service runs."""
        self._public_url = public_url.rstrip("/")
        self._find_secret = find_secret
        self._found = b""
        self._seconds = seconds

    @property
    def _key(self) -> bytes:
        """A key of its own, so that a link never tells anything of an API key."""
        if not self._found and (secret := self._find_secret()) is not None:
            self._found = hmac.digest(secret.get_secret_value().encode(), b"spillbox links", "sha256")
        return self._found

    def sign(self, path: str) -> str:
        """The path with when it ends and its signature."""
        if not self._key:
            return f"{self._public_url}{path}"
        expires = int(time.time()) + self._seconds
        return f"{self._public_url}{path}?expires={expires}&signature={self._signature(path, expires)}"

    def allow(self, method: str, path: str, query: bytes) -> bool:
        """Whether a request is one that was signed, and still in time."""
        parts = path.split("/")  # "", v1, workspaces, ID, attachments, ID
        if not self._key or method not in ("GET", "HEAD") or len(parts) != 6 or parts[4] not in _SIGNED_PARTS:
            return False
        given = parse_qs(query.decode("ascii", "replace"))
        expires, signature = (given.get(name, [""])[0] for name in ("expires", "signature"))
        if not (expires.isascii() and expires.isdecimal() and len(expires) < 12) or int(expires) < time.time():
            return False
        return hmac.compare_digest(signature.encode(), self._signature(path, int(expires)).encode())

    def _signature(self, path: str, expires: int) -> str:
        return hmac.new(self._key, f"{expires}\n{path}".encode(), hashlib.sha256).hexdigest()


def link_secret(data_folder: Path, *, make: bool = False) -> SecretStr | None:
    """What links are signed with where there is no single API key; it is made with the first key of a tenant."""
    file = data_folder / LINK_SECRET
    if make and not file.exists():
        data_folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=data_folder) as new:  # only for this user
            new.write(secrets.token_urlsafe(32))
            new.flush()
            with suppress(FileExistsError):
                os.link(new.name, file)
    return SecretStr(file.read_text()) if file.exists() else None
