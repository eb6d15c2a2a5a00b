"""The filter's program, run here by a small machine for BPF, and by the kernel in a box."""

from __future__ import annotations

import platform
import re
import struct
from pathlib import Path

import pytest

from evolvent.errors import IsolationUnavailable
from evolvent.sandbox.filters import ALLOW, BUFFERS, DENIED, FAMILIES, KILL, MACHINES, NAMESPACES, errno, program
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
    refused = {numbers[known.column] for numbers in DENIED.values()} - {None}
    looked_at = {known.clone, known.clone3, known.ioctl, known.socket, known.setsockopt}
    assert len(rows) < 4096 and not refused & looked_at
    for number in range(600):
        expected = EPERM if number in refused else ENOSYS if number == known.clone3 else ALLOW
        if number not in looked_at or number == known.clone3:
            assert decide(rows, arch=known.audit, number=number) == expected, number


def test_other_architectures_end_the_process(machine):
    for arch in {0xC000003E, 0xC00000B7, 0x40000003, 0} - {MACHINES[machine].audit}:
        assert decide(rows_of(machine), arch=arch, number=1) == KILL


def test_the_numbers_of_x32_are_refused():
    rows, known = rows_of("x86_64"), MACHINES["x86_64"]
    for number in (0x40000000, 0x40000000 + 101, 0x7FFFFFFF, 0xFFFFFFFF):
        assert decide(rows, arch=known.audit, number=number) == EPERM


def test_arguments(machine):
    known, rows = MACHINES[machine], rows_of(machine)

    def asked(number, *args):
        return decide(rows, arch=known.audit, number=number, args=args)

    threads = 0x3D0F00  # the flags of pthread_create
    assert asked(known.clone, 17) == asked(known.clone, threads) == ALLOW
    flags = [1 << bit for bit in range(32) if NAMESPACES >> bit & 1]
    assert len(flags) == 7
    assert all(asked(known.clone, flag | 17) == EPERM for flag in flags)
    assert asked(known.ioctl, 0, 0x5412) == EPERM and asked(known.ioctl, 0, 0x5413) == ALLOW
    assert [family for family in range(64) if asked(known.socket, family) == ALLOW] == list(FAMILIES)
    assert asked(known.socket, 40) == asked(known.socket, 2) == NOT_SUPPORTED
    refused = [option for option in range(64) if asked(known.setsockopt, 3, 1, option) == EPERM]
    assert refused == list(BUFFERS) and asked(known.setsockopt, 3, 1, 2) == ALLOW


def test_the_numbers_are_the_kernels(machine):
    header = Path(HEADERS[machine])
    if not header.is_file():
        pytest.skip(f"no {header}: the kernel's headers are not installed")
    text = header.read_text(encoding="utf-8")
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    known = MACHINES[machine]
    ours = {name: pair[known.column] for name, pair in DENIED.items()}
    assert {name: number for name, number in ours.items() if number != numbers.get(name, number) and number} == {}
    assert [numbers[name] for name in ("clone", "ioctl", "socket", "setsockopt")] == [
        known.clone,
        known.ioctl,
        known.socket,
        known.setsockopt,
    ]
    missing = {name for name, pair in DENIED.items() if name in numbers and pair[known.column] is None}
    assert not missing


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
    asked = [*numbers, MACHINES[platform.machine()].clone3, 10**6]
    outcomes = boxes.observe(CALLS, [CallRequest("f", (number,)) for number in asked], SandboxLimits())
    assert [outcome.value for outcome in outcomes] == ["EPERM"] * len(numbers) + ["ENOSYS", "ENOSYS"]
