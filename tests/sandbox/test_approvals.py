"""What waits for a person does so for a time, and not without number."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox.approvals import Approvals, ApprovalState
from sandbox.database import Database
from sandbox.errors import Busy, NotApproved

SHA256 = "0" * 64


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database.in_folder(tmp_path)


def asking(approvals: Approvals, workspace: str = "a~w") -> Callable[[], str]:
    return lambda: approvals.ask(workspace, "call", "tool", "{}", SHA256).id


async def test_one_that_nobody_decides_over_expires(database: Database) -> None:
    approvals = Approvals(database, wait_seconds=0.2)
    waiting = asking(approvals)()
    assert [one.id for one in approvals.waiting("a")] == [waiting]
    await asyncio.sleep(0.25)
    assert approvals.waiting("a") == []
    assert approvals.get(waiting).state is ApprovalState.EXPIRED
    for granted in (True, False):
        with pytest.raises(NotApproved, match=r"expired: nobody decided within 0\.2 s"):
            approvals.decide(waiting, granted=granted, sha256=SHA256, tenant="a")
    with pytest.raises(NotApproved):
        approvals.use(approvals.get(waiting), SHA256)
    assert not await approvals.answer(approvals.get(waiting))
    assert approvals.get(waiting).state is ApprovalState.EXPIRED


async def test_one_that_a_person_let_pass_has_expired_and_was_not_refused(database: Database) -> None:
    approvals = Approvals(database, wait_seconds=0.3)
    approval = approvals.ask("a~w", "call", "tool", "{}", SHA256)
    approvals.waiting("a")  # a person is there
    assert not await approvals.answer(approval)
    assert approvals.get(approval.id).state is ApprovalState.EXPIRED
    with pytest.raises(NotApproved, match="expired"):
        approvals.decide(approval.id, granted=True, sha256=SHA256, tenant="a")


async def test_one_that_was_decided_in_time_stays_so(database: Database) -> None:
    approvals = Approvals(database, wait_seconds=0.2)
    granted = asking(approvals)()
    approvals.decide(granted, granted=True, sha256=SHA256, tenant="a")
    await asyncio.sleep(0.25)
    approvals.use(approvals.get(granted), SHA256)
    assert approvals.get(granted).state is ApprovalState.USED


async def test_over_the_number_of_a_tenant_it_is_told_and_others_may_ask(database: Database) -> None:
    approvals = Approvals(database, most_waiting=2, wait_seconds=0.5)
    first, _ = asking(approvals)(), asking(approvals, "a~other")()
    with pytest.raises(Busy, match="2 calls wait for a person's approval already") as fault:
        asking(approvals, "a~third")()
    assert fault.value.retry_after_seconds > 2
    assert asking(approvals, "b~w")()
    assert asking(approvals, "w")()
    approvals.decide(first, granted=False, sha256=SHA256, tenant="a")
    assert asking(approvals)()
    with pytest.raises(Busy):
        asking(approvals)()
    await asyncio.sleep(0.55)
    assert asking(approvals)(), "those that expired have made room"


def test_calls_at_the_same_time_keep_to_the_number(database: Database) -> None:
    approvals = Approvals(database, most_waiting=5)

    def ask(_: int) -> bool:
        try:
            return bool(asking(approvals)())
        except Busy:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(40))) == 5
    assert len(approvals.waiting("a")) == 5


async def test_a_caller_that_leaves_leaves_nothing_waiting(database: Database) -> None:
    approvals = Approvals(database)
    approval = approvals.ask("a~w", "call", "tool", "{}", SHA256)
    approvals.waiting("a")  # a person is there
    answering = asyncio.create_task(approvals.answer(approval))
    await asyncio.sleep(0.1)
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
    assert approvals.waiting("a") == []
    assert approvals.get(approval.id).state is ApprovalState.REFUSED
