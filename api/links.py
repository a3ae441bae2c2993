"""Links that open without the key, for a while: a browser that downloads an attachment sends no header."""

import hashlib
import hmac
import time
from urllib.parse import parse_qs

from pydantic import SecretStr

_SIGNED_PARTS = ("attachments", "tables")


class Links:
    """Signs and checks links to attachments and tables; without a key nothing needs a signature."""

    def __init__(self, api_key: SecretStr | None, *, seconds: int, public_url: str = "") -> None:
        self._public_url = public_url.rstrip("/")
        # A key of its own, so that a link never tells anything of the API key.
        self._key = api_key and hmac.digest(api_key.get_secret_value().encode(), b"spillbox links", "sha256")
        self._seconds = seconds

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
        return hmac.new(self._key or b"", f"{expires}\n{path}".encode(), hashlib.sha256).hexdigest()
