"""The libraries that a shared object needs, from its dynamic section. Layout: ELF-64, little-endian.

Only a few hundred bytes are read, whatever the size of the file; nothing is loaded or executed.
"""

import os
import struct

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_PROGRAM = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
_ENTRY = struct.Struct("<qQ")  # Elf64_Dyn
_MAGIC = b"\x7fELF\x02\x01"  # ELFCLASS64, ELFDATA2LSB
_LOAD, _DYNAMIC = 1, 2  # PT_LOAD, PT_DYNAMIC
_END, _NEEDED, _STRTAB = 0, 1, 5  # DT_NULL, DT_NEEDED, DT_STRTAB
# The file may be damaged: libraries have about ten program headers and forty entries, sonames at most 100 characters.
_PROGRAMS_MAX, _SECTION_MAX, _NAME_MAX = 256, 1 << 20, 256


def needed(path):
    """Return the sonames that a file needs (DT_NEEDED), in its order; empty if it is no shared object of this kind."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        return _needed(descriptor)
    except (OSError, struct.error, ValueError, OverflowError):
        return []
    finally:
        os.close(descriptor)


def _needed(descriptor):
    head = os.pread(descriptor, _HEADER.size, 0)
    if not head.startswith(_MAGIC):
        return []
    fields = _HEADER.unpack(head)
    table, size, count = fields[5], fields[9], fields[10]
    if size != _PROGRAM.size or count > _PROGRAMS_MAX:
        return []
    rows = list(_PROGRAM.iter_unpack(os.pread(descriptor, size * count, table)))
    # (offset in the file, address in memory, bytes in the file) of the loaded segments
    loaded = [(row[2], row[3], row[5]) for row in rows if row[0] == _LOAD]
    dynamic = next(((row[2], row[5]) for row in rows if row[0] == _DYNAMIC), None)
    if dynamic is None or dynamic[1] > _SECTION_MAX:
        return []
    data = os.pread(descriptor, dynamic[1], dynamic[0])
    entries = []
    for tag, value in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]):
        if tag == _END:
            break
        entries.append((tag, value))
    strings = next((_offset(value, loaded) for tag, value in entries if tag == _STRTAB), None)
    if strings is None:
        return []
    names = [_name(descriptor, strings + value) for tag, value in entries if tag == _NEEDED]
    return [name for name in names if name]


def _offset(address, loaded):
    """Return the offset in the file of an address in memory, None if no segment has it."""
    for offset, start, size in loaded:
        if start <= address < start + size:
            return offset + address - start
    return None


def _name(descriptor, offset):
    return os.pread(descriptor, _NAME_MAX, offset).split(b"\0", 1)[0].decode("utf-8", "replace")


def planted(soname):
    """Return the smallest shared object that needs ``soname``, as bytes: a planted fault for those who look for one."""
    strings = b"\0" + soname.encode("ascii") + b"\0"
    start = _HEADER.size + 2 * _PROGRAM.size
    after = start + 3 * _ENTRY.size
    size = after + len(strings)
    entries = _ENTRY.pack(_NEEDED, 1) + _ENTRY.pack(_STRTAB, after) + _ENTRY.pack(_END, 0)
    machine = 62  # EM_X86_64; the reader takes any
    header = _HEADER.pack(
        _MAGIC + b"\x01", 3, machine, 1, 0, _HEADER.size, 0, 0, _HEADER.size, _PROGRAM.size, 2, 0, 0, 0
    )
    load = _PROGRAM.pack(_LOAD, 4, 0, 0, 0, size, size, 4096)
    dynamic = _PROGRAM.pack(_DYNAMIC, 4, start, start, start, len(entries), len(entries), 8)
    return header + load + dynamic + entries + strings
