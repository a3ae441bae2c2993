"""Arrays read in pieces, wherever the pieces fall."""

import io
import json
import random
import tracemalloc
from pathlib import Path

import pytest

from sandbox.tables import stream
from sandbox.tables.slices import NotJson
from sandbox.tables.stream import Window, lines, pieces
from tests.sandbox.tables.test_slices import any_value, encoded


@pytest.mark.parametrize("piece_bytes", [16, 50, 333])
@pytest.mark.parametrize("seed", range(30))
def test_all_elements_come_in_order_whatever_the_size_of_the_pieces(
    seed: int, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "PIECE_BYTES", piece_bytes)
    rng = random.Random(seed)
    values = [any_value(rng) for _ in range(rng.randrange(60))]
    data = encoded(rng, values)
    found = list(pieces(Window(io.BytesIO(data))))
    assert [value for _, piece in found for value in json.loads(piece)] == values
    for at, piece in found:
        assert data[at + 1 : at + len(piece) - 1] == piece[1:-1]
    document = encoded(rng, {"before": values, "deep": {"x": [1], "rows": values}, "after": 1})
    window = Window(io.BytesIO(document))
    assert window.enter("deep")
    assert window.enter("rows")
    assert [value for _, piece in pieces(window) for value in json.loads(piece)] == values


@pytest.mark.parametrize("piece_bytes", [20, 1000])
def test_lines_of_values_and_values_in_any_lines(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PIECE_BYTES", piece_bytes)
    values = [{"n": n, "t": "a\nb" * (n % 5)} for n in range(50)]
    one_a_line = "\n".join(map(json.dumps, values))
    over_lines = "\n".join(json.dumps(value, indent=1) for value in values)
    together = "".join(map(json.dumps, values))
    for text in (one_a_line, one_a_line + "\n\n", over_lines, together):
        found = [value for _, piece in lines(Window(io.BytesIO(text.encode()))) for value in json.loads(piece)]
        assert found == values
    with pytest.raises(NotJson) as fault:
        list(lines(Window(io.BytesIO((one_a_line + '\n{"n"').encode()))))
    assert fault.value.truncated


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for count in (30_000, 300_000):
        path = tmp_path / f"{count}.json"
        path.write_text("[" + ",".join(f'{{"id":{n},"name":"name {n}"}}' for n in range(count)) + "]")
        tracemalloc.start()
        with path.open("rb") as file:
            assert sum(json.loads(piece)[-1]["id"] >= 0 for _, piece in pieces(Window(file))) > 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
