"""What the server that is written by hand answers, for its tests."""

LITERALS = '{"price": 1.10, "huge": 1e400, "id": 947871269024436488, "minus": -0, "deep": [1.0, 2.50, 12345678901234567890.123]}'
