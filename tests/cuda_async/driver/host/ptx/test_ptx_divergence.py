"""Random control flow, against a scalar interpreter that runs one thread after another.

Programs are random graphs: blocks of arithmetic, some of it guarded, that branch anywhere, call a function
or meet at a barrier of the warp; a counter ends each thread. What can go wrong is which lanes an instruction
writes, so every thread starts with other values.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from cuda_async.driver.host.ptx import _lanes, _launch, _wave

REGISTERS = 6
MASK = 0xFFFFFFFF
OPERATIONS = {
    "add.u32": lambda a, b: (a + b) & MASK,
    "sub.u32": lambda a, b: (a - b) & MASK,
    "mul.lo.u32": lambda a, b: (a * b) & MASK,
    "xor.b32": lambda a, b: a ^ b,
    "and.b32": lambda a, b: a & b,
    "max.u32": max,
}
HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"


class Program:
    """Blocks of (operation, target, a, b, guard) with an ending; also as PTX."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.limit = int(random.integers(5, 40))
        self.blocks = []
        count = int(random.integers(3, 14))
        for _ in range(count):
            steps = [
                (
                    list(OPERATIONS)[random.integers(len(OPERATIONS))],
                    *(int(v) for v in random.integers(0, REGISTERS, 3)),
                    random.choice(["", "", "", "@%p ", "@!%p "]),
                )
                for _ in range(int(random.integers(0, 6)))
            ]
            kind = random.choice(["branch", "branch", "branch", "jump", "call", "switch", "exit"])
            targets = [int(v) for v in random.integers(0, count, 4)]
            condition = (int(random.integers(REGISTERS)), int(random.integers(1, 8)), int(random.integers(8)))
            self.blocks.append((steps, str(kind), targets, condition))

    def text(self) -> str:
        lines = []
        for number, (steps, kind, targets, (register, mask, bound)) in enumerate(self.blocks):
            lines.append(
                f"B{number}: add.u32 %fuel, %fuel, 1; setp.gt.u32 %q, %fuel, {self.limit}; @%q bra END;"
            )
            for operation, d, a, b, guard in steps:
                lines.append(f"{guard}{operation} %r{d}, %r{a}, %r{b};")
            lines.append(f"and.b32 %t, %r{register}, {mask}; setp.lt.u32 %p, %t, {bound};")
            if kind == "branch":
                lines.append(f"@%p bra B{targets[0]}; bra B{targets[1]};")
            elif kind == "jump":
                lines.append(f"bra B{targets[0]};")
            elif kind == "exit":
                lines.append(f"@%p bra END; bra B{targets[0]};")
            elif kind == "switch":
                lines.append(
                    f"and.b32 %t, %r{register}, 3; L{number}: .branchtargets {', '.join(f'B{t}' for t in targets)};"
                    f"brx.idx %t, L{number};"
                )
            else:
                lines.append(
                    f"{{ .param .b32 x; .param .b32 y; .param .b32 z; st.param.b32 [x], %r{register};"
                    f"st.param.b32 [y], %r{targets[3] % REGISTERS}; call.uni (z), mix, (x, y);"
                    f"ld.param.b32 %r{targets[2] % REGISTERS}, [z]; }} bra B{targets[0]};"
                )
        count = REGISTERS + 2
        loads = "".join(f"ld.global.u32 %r{i}, [%a+{4 * i}];" for i in range(REGISTERS))
        stores = "".join(f"st.global.u32 [%a+{4 * i}], %r{i};" for i in range(REGISTERS))
        return f"""{HEADER}
.func (.param .b32 r) mix(.param .b32 x, .param .b32 y) {{
    .reg .b32 %x, %y, %z; .reg .pred %p;
    ld.param.b32 %x, [x]; ld.param.b32 %y, [y];
    and.b32 %z, %x, 63; setp.eq.u32 %p, %z, 5; @%p exit;
    again: setp.lt.u32 %p, %x, 1000; @%p bra small;
    shr.u32 %x, %x, 3; add.u32 %y, %y, %x; bra again;
    small: st.param.b32 [r], %y;
    and.b32 %x, %y, 1; setp.eq.u32 %p, %x, 0; @%p ret;
    not.b32 %y, %y; st.param.b32 [r], %y;
    ret;
}}
.visible .entry k(.param .u64 data, .param .u32 n) {{
    .reg .b32 %r<{REGISTERS}>, %t, %fuel, %n, %c; .reg .pred %p, %q; .reg .b64 %a;
    mov.u32 %t, %tid.x; mov.u32 %n, %ntid.x; mov.u32 %c, %ctaid.x; mad.lo.u32 %t, %c, %n, %t;
    ld.param.u32 %n, [n]; setp.ge.u32 %p, %t, %n; @%p exit;
    ld.param.u64 %a, [data]; mad.wide.u32 %a, %t, {4 * count}, %a;
    {loads}
    mov.u32 %fuel, 0; setp.eq.u32 %p, %fuel, 1;
    {chr(10).join(lines)}
    END: {stores} st.global.u32 [%a+{4 * REGISTERS}], %fuel;
    ret;
}}"""

    def run(self, registers: list[int]) -> list[int]:
        """One thread; gives its registers and how many blocks it entered."""
        r = list(registers)
        fuel, block, p = 0, 0, False
        while True:
            fuel += 1
            if fuel > self.limit:
                return [*r, fuel]
            steps, kind, targets, (register, mask, bound) = self.blocks[block]
            for operation, d, a, b, guard in steps:
                if guard == "" or p == (guard == "@%p "):
                    r[d] = OPERATIONS[operation](r[a], r[b])
            p = (r[register] & mask) < bound
            if kind == "branch":
                block = targets[0] if p else targets[1]
            elif kind == "exit":
                if p:
                    return [*r, fuel]
                block = targets[0]
            elif kind == "switch":
                block = targets[r[register] & 3]
            else:
                if kind == "call":
                    r[targets[2] % REGISTERS] = mix(r[register], r[targets[3] % REGISTERS])
                block = targets[0]


class ThreadExit(Exception):
    """A thread ended inside a function, so it has stored nothing."""


def mix(x: int, y: int) -> int:
    if x & 63 == 5:
        raise ThreadExit
    while x >= 1000:
        x >>= 3
        y = (y + x) & MASK
    return y if y & 1 == 0 else y ^ MASK


def check(ptx_device, seed: int, threads: int, block: int) -> None:
    program = Program(seed)
    start = np.random.default_rng(seed).integers(0, 1 << 32, (threads, REGISTERS + 2), dtype="u4")
    start[::3] %= 16
    data = ptx_device.put(start)
    functions = ptx_device.load(program.text()).functions
    ptx_device.run(functions["k"], -(-threads // block), block, data, threads)
    got = ptx_device.get(data, start.shape, "u4")[:, :-1]
    expected = start[:, :-1].copy()
    for row in expected:
        with suppress(ThreadExit):
            row[:] = program.run(row[:REGISTERS].tolist())
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("seed", range(25))
def test_random_programs(ptx_device, seed):
    check(ptx_device, seed, 150, 48)


@pytest.mark.parametrize("seed", range(100, 115))
def test_random_programs_in_compact_groups(ptx_device, seed, monkeypatch):
    """Every group that does not cover its frame works on a copy."""
    monkeypatch.setattr(_lanes, "_COMPACT_LANES", 1)
    monkeypatch.setattr(_lanes, "_COMPACT_RATIO", 1.001)
    check(ptx_device, seed, 150, 64)


@pytest.mark.parametrize("seed", range(200, 210))
def test_random_programs_in_short_steps(ptx_device, seed, monkeypatch):
    """A step after every instruction; groups make way for each other all the time."""
    monkeypatch.setattr(_launch, "_STEP_SECONDS", 0.0)
    monkeypatch.setattr(_wave, "_TURNS", 1)
    monkeypatch.setattr(_wave, "_FAVOUR", 3)
    check(ptx_device, seed, 100, 32)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_many_random_programs(ptx_device, seed, monkeypatch):
    if seed % 3 == 0:
        monkeypatch.setattr(_lanes, "_COMPACT_LANES", 1)
        monkeypatch.setattr(_lanes, "_COMPACT_RATIO", 1.001)
    if seed % 2 == 0:
        monkeypatch.setattr(_wave, "_TURNS", 1)
    check(ptx_device, seed, 3000 if seed % 10 == 0 else 300, 96)
