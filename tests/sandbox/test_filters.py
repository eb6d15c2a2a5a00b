"""The filter's program, run here by a small machine for BPF, and by the kernel in a box."""

from __future__ import annotations

import platform
import re
import struct
from pathlib import Path

import pytest

from evolvent.errors import IsolationUnavailable
from evolvent.sandbox.filters import (
    ALLOW,
    ANSWERS,
    CHECKS,
    DENIED,
    KILL,
    MACHINES,
    NAMESPACES,
    UNKNOWN_CALL,
    errno,
    program,
)
from evolvent.sandbox.limits import CallRequest, SandboxLimits

EPERM, ENOSYS, NOT_SUPPORTED = errno(1), errno(38), errno(97)
HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


def decide(rows, *, arch, number, args=()):
    """What a program answers to a call."""
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *args, *[0] * (6 - len(args)))
    place, accumulator = 0, 0
    for _ in range(len(rows)):
        code, yes, no, k = rows[place]
        place += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif code == 0x06:
            return k
        else:
            holds = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[code]
            place += yes if holds else no
    raise AssertionError("no answer")


def rows_of(machine):
    data = program(machine)
    return [struct.unpack_from("=HBBI", data, at) for at in range(0, len(data), 8)]


@pytest.fixture(params=sorted(MACHINES))
def machine(request):
    return request.param


def test_listed_calls_are_refused_and_all_others_are_not(machine):
    known, rows = MACHINES[machine], rows_of(machine)
    expected = {numbers[known.column]: EPERM for numbers in DENIED.values()}
    expected |= {numbers[known.column]: errno(error) for numbers, error in ANSWERS.values()}
    expected |= dict.fromkeys(range(UNKNOWN_CALL, UNKNOWN_CALL + 100), ENOSYS)
    looked_at = {check.numbers[known.column] for check in CHECKS.values()}
    assert len(rows) < 4096 and not expected.keys() & looked_at - {None}
    for number in set(range(UNKNOWN_CALL + 100)) - looked_at:
        assert decide(rows, arch=known.audit, number=number) == expected.get(number, ALLOW), number


def test_other_architectures_end_the_process(machine):
    for arch in {0xC000003E, 0xC00000B7, 0x40000003, 0} - {MACHINES[machine].audit}:
        assert decide(rows_of(machine), arch=arch, number=1) == KILL


def test_the_numbers_of_x32_are_refused():
    rows, known = rows_of("x86_64"), MACHINES["x86_64"]
    for number in (0x40000000, 0x40000000 + 101, 0x7FFFFFFF, 0xFFFFFFFF):
        assert decide(rows, arch=known.audit, number=number) == EPERM


def test_arguments(machine):
    known, rows = MACHINES[machine], rows_of(machine)

    def asked(name, *args):
        return decide(rows, arch=known.audit, number=CHECKS[name].numbers[known.column], args=args)

    threads = 0x3D0F00  # the flags of pthread_create
    assert asked("clone", 17) == asked("clone", threads) == asked("clone", 0x4111) == ALLOW
    flags = [1 << bit for bit in range(32) if NAMESPACES >> bit & 1]
    assert len(flags) == 7
    assert all(asked("clone", flag | 17) == EPERM for flag in flags)
    assert asked("clone", 0x400 | 17) == asked("clone", threads & ~0x400) == EPERM  # descriptors that are not seen
    assert asked("close_range", 3, 9, 0) == asked("close_range", 3, 9, 4) == ALLOW
    assert asked("close_range", 3, 9, 2) == asked("close_range", 3, 9, 6) == EPERM
    assert asked("ioctl", 0, 0x5412) == EPERM and asked("ioctl", 0, 0x5413) == ALLOW
    assert [family for family in range(64) if asked("socket", family) == ALLOW] == [1]
    assert asked("socket", 40) == asked("socket", 2) == NOT_SUPPORTED
    refused = [option for option in range(64) if asked("setsockopt", 3, 1, option) == EPERM]
    assert refused == [7, 8, 26, 32, 33, 50, 51, 52] and asked("setsockopt", 3, 1, 2) == ALLOW
    commands = [command for command in range(1100) if asked("fcntl", 3, command) == ALLOW]
    assert commands == [*range(8), 1030, 1032, 1034] and asked("fcntl", 3, 1024) == errno(22)
    assert [option for option in range(80) if asked("prctl", option) == EPERM] == [4, 22, 62]
    assert asked("mmap", 0, 4096, 3, 0x22) == ALLOW and asked("mmap", 0, 4096, 3, 0x40022) == EPERM


def test_the_numbers_are_the_kernels(machine):
    header = Path(HEADERS[machine])
    if not header.is_file():
        pytest.skip(f"no {header}: the kernel's headers are not installed")
    text = header.read_text(encoding="utf-8")
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    column = MACHINES[machine].column
    tables = DENIED | {name: row[0] for name, row in ANSWERS.items()} | {name: c.numbers for name, c in CHECKS.items()}
    ours = {name: pair[column] for name, pair in tables.items() if pair[column] is not None}
    assert {name: number for name, number in ours.items() if number != numbers.get(name, number)} == {}
    assert not {name for name, pair in tables.items() if name in numbers and pair[column] is None}


def test_unknown_machines_are_refused():
    with pytest.raises(IsolationUnavailable, match="riscv64"):
        program("riscv64")


CALLS = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def f(number):
    ctypes.set_errno(0)
    result = libc.syscall(number, -1, -1, -1, -1, -1, -1)
    return errno.errorcode.get(ctypes.get_errno()) if result == -1 else result
"""


def test_the_kernel_obeys(boxes):
    column = MACHINES[platform.machine()].column
    numbers = [pair[column] for pair in DENIED.values() if pair[column] is not None]
    answers = [numbers[column] for numbers, error in ANSWERS.values() if error == 0]
    asked = [*numbers, *answers, ANSWERS["clone3"][0][column], UNKNOWN_CALL, 10**6]
    outcomes = boxes.observe(CALLS, [CallRequest("f", (number,)) for number in asked], SandboxLimits())
    assert [outcome.value for outcome in outcomes] == (["EPERM"] * len(numbers) + [0] * len(answers) + ["ENOSYS"] * 3)
