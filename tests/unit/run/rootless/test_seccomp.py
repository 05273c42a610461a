"""The filter, run by a small interpreter of classic BPF."""

import struct

import pytest

from envkit.run.rootless.seccomp import ALLOW, ARCHITECTURES, ERRNO, program

EPERM, ENOSYS = ERRNO | 1, ERRNO | 38


def answer(machine: str, number: int, *, audit: int | None = None, argument: int = 0) -> int:
    code = program(machine)
    assert code is not None
    rows = list(struct.iter_unpack("=HBBI", code))
    data = struct.pack("=iIQQ", number, ARCHITECTURES[machine].audit if audit is None else audit, 0, argument)
    at, register = 0, 0
    while True:
        kind, yes, no, value = rows[at]
        at += 1
        if kind == 0x20:
            register = struct.unpack_from("=I", data, value)[0]
        elif kind == 0x06:
            return int(value)
        else:
            held = {0x15: register == value, 0x35: register >= value, 0x45: bool(register & value)}[kind]
            at += yes if held else no


@pytest.mark.parametrize(
    ("machine", "number", "expected"),
    [
        ("x86_64", 0, ALLOW), ("x86_64", 59, ALLOW), ("x86_64", 165, EPERM), ("x86_64", 272, EPERM),
        ("x86_64", 435, ENOSYS), ("x86_64", 0x40000000 | 165, ENOSYS), ("x86_64", 321, EPERM), ("x86_64", 250, EPERM),
        ("aarch64", 63, ALLOW), ("aarch64", 40, EPERM), ("aarch64", 97, EPERM), ("aarch64", 435, ENOSYS),
    ],
)  # fmt: skip
def test_calls_are_allowed_or_refused(machine: str, number: int, expected: int) -> None:
    assert answer(machine, number) == expected


@pytest.mark.parametrize(("machine", "clone"), [("x86_64", 56), ("aarch64", 220)])
def test_threads_are_allowed_and_namespaces_are_not(machine: str, clone: int) -> None:
    assert answer(machine, clone, argument=0x003D0F00) == ALLOW  # as pthread_create asks
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(machine, clone, argument=flag | 17) == EPERM


def test_calls_of_another_architecture_do_not_exist() -> None:
    assert answer("x86_64", 0, audit=0x40000003) == ENOSYS


def test_an_unknown_machine_has_no_filter() -> None:
    assert program("riscv64") is None
