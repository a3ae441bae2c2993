"""API keys: each speaks for a tenant. Only a hash is stored, so a key is shown once, when it is made."""

import hashlib
import secrets
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Boolean, Column, DateTime, MetaData, RowMapping, String, Table, bindparam, exists, select, update

from sandbox.database import Database, with_zone
from sandbox.errors import InvalidArguments, NotFound
from sandbox.tenants import NAME

PREFIX = "sbx_"
_SECRET_BYTES = 32

_metadata = MetaData()
_keys = Table(
    "keys",
    _metadata,
    Column("id", String(16), primary_key=True),
    Column("tenant", String(32), nullable=False, index=True),
    Column("note", String(200), nullable=False),
    Column("approves", Boolean, nullable=False),
    Column("sha256", String(64), nullable=False, unique=True),
    Column("made_at", DateTime(timezone=True), nullable=False),
    Column("revoked_at", DateTime(timezone=True)),
)

# Made once, since each request asks: making a statement takes as long as doing it.
_find = select(_keys).where((_keys.c.sha256 == bindparam("of_text")) & _keys.c.revoked_at.is_(None))
_any = select(exists(select(_keys)))


class Key(BaseModel):
    """What is known of a key."""

    model_config = ConfigDict(frozen=True)

    id: str
    tenant: str
    note: str
    approves: bool
    """Whether who bears it may decide over the tenant's approvals."""
    made_at: datetime
    revoked_at: datetime | None = None


class Keys:
    """Over one database; its methods block."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.make(_metadata)

    def create(self, tenant: str, *, note: str = "", approves: bool = False) -> tuple[Key, str]:
        """A new key, and its text, which nobody can read again; raises `InvalidArguments` for a name that is none."""
        if not NAME.fullmatch(tenant):
            raise InvalidArguments(
                f"{tenant[:40]!a} is no name of a tenant. Use 1 to 32 small letters, digits or '-', the first no '-'."
            )
        made = Key(
            id=secrets.token_hex(4), tenant=tenant, note=note[:200], approves=approves, made_at=datetime.now(UTC)
        )
        # 256 random bits need no slow hash: they can't be guessed.
        text = f"{PREFIX}{made.id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
        self._database.write(_keys.insert(), {**made.model_dump(), "sha256": _hash(text)})
        return made, text

    def find(self, text: str) -> Key | None:
        """The key of this text, if there is one and it was not revoked."""
        with self._database.reading() as db:
            row = db.execute(_find, {"of_text": _hash(text)}).mappings().first()
        return None if row is None else _key(row)

    def all(self) -> list[Key]:
        """Every key there ever was, oldest first."""
        with self._database.reading() as db:
            return [_key(row) for row in db.execute(select(_keys).order_by(_keys.c.made_at)).mappings()]

    def any(self) -> bool:
        """Whether there ever was one: from then on nobody is answered without a key, also when all are revoked."""
        with self._database.reading() as db:
            return bool(db.execute(_any).scalar())

    def revoke(self, key_id: str) -> Key:
        """End a key, at once and for ever; raises `NotFound`."""
        this = (_keys.c.id == key_id) & _keys.c.revoked_at.is_(None)
        self._database.write(update(_keys).where(this).values(revoked_at=datetime.now(UTC)))
        found = next((key for key in self.all() if key.id == key_id), None)
        if found is None:
            raise NotFound(f"There is no key {key_id[:40]!a}. `spillbox keys list` shows those that there are.")
        return found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _key(row: RowMapping) -> Key:
    return Key.model_validate(with_zone(row))
