"""Keys of tenants."""

from pathlib import Path

import pytest

from sandbox.database import Database
from sandbox.errors import InvalidArguments, NotFound
from sandbox.keys import Keys


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(Database.in_folder(tmp_path))


def test_a_key_is_found_by_its_text_until_it_is_revoked(keys: Keys) -> None:
    assert not keys.any()
    made, text = keys.create("acme", note="the agent")
    other, _ = keys.create("other", approves=True)
    assert keys.find(text) == made
    assert (made.tenant, made.note, made.approves, other.approves) == ("acme", "the agent", False, True)
    assert keys.find(text[:-1]) is None
    assert keys.find("") is None
    assert keys.revoke(made.id).revoked_at is not None
    assert keys.find(text) is None
    assert [key.id for key in keys.all()] == [made.id, other.id]
    assert keys.any()


def test_nothing_that_is_stored_lets_anyone_in(keys: Keys, tmp_path: Path) -> None:
    _, text = keys.create("acme")
    secret = text.split("_", 2)[2]
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("records.sqlite3*"))
    assert b"acme" in stored
    assert secret.encode() not in stored
    assert len(secret) >= 43


def test_a_revoked_key_stays_as_it_was_revoked(keys: Keys) -> None:
    made, _ = keys.create("acme")
    assert keys.revoke(made.id) == keys.revoke(made.id)
    with pytest.raises(NotFound, match="keys list"):
        keys.revoke("none")


@pytest.mark.parametrize("name", ["", "Acme", "a~b", "-a", "a" * 33, "a/b", "é"])
def test_a_name_that_no_tenant_can_have_is_refused(keys: Keys, name: str) -> None:
    with pytest.raises(InvalidArguments, match="small letters"):
        keys.create(name)
