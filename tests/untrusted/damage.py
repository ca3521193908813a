"""Damaged input for parsers: valid input with bytes or words changed, cut, doubled and taken from elsewhere."""

from __future__ import annotations

import re
import time

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

LONGEST_S = 10.0
"""What one small input may take on a slow machine; what hangs takes longer."""

NUMBERS = [0, 1, 2, 127, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63]
_WORD = re.compile(r"[A-Za-z_$%.@][\w$]*|\d+|\s+|.", re.DOTALL)
_PIECES = [
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    '"',
    "\\",
    "\0",
    "é",
    "%",
    "0x",
    "-",
    "//",
    "/*",
    "1e999",
    "²",
    "9" * 30,
]

FAST = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
LONG = settings(FAST, max_examples=20_000)

_place = st.integers(0, 2**20)


@st.composite
def damaged_bytes(draw, samples):
    """Bytes like one of the samples."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(_place) % (len(data) + 1)
        kind = draw(st.integers(0, 6))
        if kind == 0:
            data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif kind == 1:
            del data[at : at + draw(st.sampled_from([1, 4, 16, 200]))]
        elif kind == 2:
            data[at:at] = draw(st.binary(min_size=1, max_size=16))
        elif kind == 3:
            start = draw(_place) % (len(data) + 1)
            data[at:at] = data[start : start + draw(st.sampled_from([1, 8, 64]))]
        elif kind == 4:
            del data[at:]
        elif kind == 5:
            width = draw(st.sampled_from([1, 2, 4, 8]))
            value = draw(st.sampled_from(NUMBERS)) * draw(st.sampled_from([1, -1]))
            data[at : at + width] = (value % 256**width).to_bytes(width, "little")
        else:
            other = draw(st.sampled_from(samples))
            start = draw(_place) % (len(other) + 1)
            data[at : at + 8] = other[start : start + draw(st.sampled_from([8, 64]))]
    return bytes(data)


@st.composite
def damaged_text(draw, samples):
    """Text like one of the samples, word by word."""
    words = _WORD.findall(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 6))):
        if not words:
            break
        at = draw(_place) % len(words)
        kind = draw(st.integers(0, 6))
        if kind == 0:
            del words[at : at + draw(st.sampled_from([1, 1, 5, 500]))]
        elif kind == 1:
            words[at] = words[draw(_place) % len(words)]
        elif kind == 2:
            words.insert(at, words[draw(_place) % len(words)])
        elif kind == 3:
            words[at] = str(draw(st.sampled_from(NUMBERS)))
        elif kind == 4:
            words[at:at] = words[at : at + 6] * draw(st.sampled_from([1, 5, 40]))
        elif kind == 5:
            words[at] = draw(st.sampled_from(_PIECES))
        else:
            numbers = [i for i, word in enumerate(words) if word.isdecimal()]
            if numbers:
                i = numbers[draw(_place) % len(numbers)]
                words[i] = str(draw(st.sampled_from(NUMBERS)) * draw(st.sampled_from([1, 10**25])))
    return "".join(words)


def survives(parse, data, allowed):
    """Call a parser: it gives something, or raises what it says it does, within bounds of time."""
    began = time.monotonic()
    try:
        parse(data)
    except allowed:
        pass
    assert time.monotonic() - began < LONGEST_S
