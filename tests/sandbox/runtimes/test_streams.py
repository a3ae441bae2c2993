"""Captured output: whole when short, head and tail when long, never half a character."""

from pathlib import Path

import pytest

from sandbox.runtimes.streams import Capture


def _capture(tmp_path: Path, text_bytes: int = 1024, disk_bytes: int = 1 << 20) -> Capture:
    return Capture("stdout", text_bytes=text_bytes, disk_bytes=disk_bytes, folder=tmp_path)


@pytest.mark.parametrize("chunk", [1, 7, 511, 512, 513, 4000])
@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 3000])
def test_what_is_kept_is_what_came(tmp_path: Path, chunk: int, size: int) -> None:
    data = bytes(97 + n % 26 for n in range(size))
    capture = _capture(tmp_path)
    for start in range(0, size, chunk):
        assert capture.feed(data[start : start + chunk])
    whole = capture.whole()
    assert (whole if isinstance(whole, bytes) else whole.read()) == data
    assert capture.truncated == (size > 1024)
    if size <= 1024:
        assert capture.text() == data.decode()
    else:
        head, _, tail = capture.text().partition(f"\n[... {size - 1024:,} bytes left out ...]\n")
        assert (head.encode(), tail.encode()) == (data[:512], data[-512:])
    capture.close()


@pytest.mark.parametrize("shift", range(4))
def test_a_character_is_never_cut_in_half(tmp_path: Path, shift: int) -> None:
    capture = _capture(tmp_path)
    capture.feed(b"x" * shift + "한글😀é".encode() * 500)
    assert "�" not in capture.text()
    capture.close()


def test_the_disk_holds_no_more_than_its_limit(tmp_path: Path) -> None:
    capture = _capture(tmp_path, disk_bytes=5000)
    results = [capture.feed(b"y" * 1000) for _ in range(9)]
    assert results == [True] * 5 + [False] * 4
    whole = capture.whole()
    assert not isinstance(whole, bytes)
    assert len(whole.read()) == 5000
    assert capture.total_bytes == 9000
    capture.close()


def test_a_full_disk_stops_the_run_and_not_the_bound_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Capture, "_keep", no_space)
    capture = _capture(tmp_path)
    assert not any(capture.feed(b"z" * 1000) for _ in range(100))
    assert capture.disk_is_full
    assert len(capture.text()) < 1200
    assert capture.total_bytes == 100_000
