"""Where this thread's Python frames lie in memory, so that another process can read them and nothing runs in here.

A thread of our own that reads them would run finalizers of the training, and be there when it forks. The places differ
between versions of Python. They are found by searching this process's own memory for what Python itself tells about
the running frames. The search reads through /proc/self/mem, where an address that is none is an error and no signal.
"""

import os
import struct
import sys
import types

_STATE = 100  # words of a thread's state that are searched; the newest frame is among the first twenty
_FRAME = 24  # words of a frame
_CODE = 40  # words of a code object
_FRAMES = 12
_LEAST = 3  # frames with different places in their code; fewer may agree by chance
_TAGS = 7  # low bits of a reference, which Python 3.14 uses for itself
_WORDS = 8


def layout(ctypes, thread):
    """Return the addresses and offsets that a reader needs, None where they are not found.

    `thread` is the kernel's ID of this thread.
    """
    if ctypes is None or struct.calcsize("P") != _WORDS or sys.implementation.name != "cpython":
        return None
    current = ctypes.pythonapi["PyThreadState_Get"]  # an own function object, as in `keeper`
    current.argtypes, current.restype = (), ctypes.c_void_p
    state = current()
    memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = search(memory, state)
    finally:
        os.close(memory)
    if found is not None:
        found.update(thread=thread, state=state, version=sys.version_info[0] * 100 + sys.version_info[1])
    return found


def search(memory, state):
    """Return the offsets, None where they are not found."""
    frames, frame = [], sys._getframe()
    while frame is not None and len(frames) < _FRAMES:
        frames.append((id(frame.f_code), frame.f_lasti, frame.f_code))
        frame = frame.f_back
    # Until the newest frame is found no function of Python may be called here: it would be the newest then.
    top = struct.unpack("%dQ" % _STATE, os.pread(memory, _STATE * _WORDS, state))
    starts = []
    for at, word in enumerate(top):
        if not 4096 < word < 1 << 56 or word % _WORDS:
            continue
        starts.append((at * _WORDS, None, word))
        try:
            inner = struct.unpack("3Q", os.pread(memory, 3 * _WORDS, word))
        except (OSError, struct.error):
            continue
        for second, address in enumerate(inner):
            starts.append((at * _WORDS, second * _WORDS, address))
    for first, second, address in starts:
        linked = links(memory, address, [code for code, _, _ in frames])
        if linked is not None:
            code, back, chain = linked
            places = positions(memory, chain[1:], frames[1:]), codes(memory, [frame[2] for frame in frames])
            if None in places:
                return None
            found = {"first": first, "code": code, "back": back, "type": id(types.CodeType)}
            found.update({} if second is None else {"second": second})
            for place in places:
                found.update(place)
            return found
    return None


def words(memory, address, count=1):
    """Return words of this process's memory, none for an address that is not in it."""
    if not 4096 < address < 1 << 56:
        return ()
    try:
        return struct.unpack("%dQ" % count, os.pread(memory, count * _WORDS, address))
    except (OSError, struct.error):
        return ()


def links(memory, newest, expected):
    """Return the offsets of a frame's code and of the frame below it, and the frames; None unless all are expected."""
    head = words(memory, newest, _FRAME)
    for code, word in enumerate(head):
        if word & ~_TAGS != expected[0]:
            continue
        for back in range(len(head)):
            chain = walk(memory, newest, (code * _WORDS, back * _WORDS), expected) if back != code else None
            if chain:
                return code * _WORDS, back * _WORDS, chain
    return None


def walk(memory, frame, offsets, expected):
    """Return the frames that have the expected codes, from the newest on; between them Python has some of its own."""
    chain = []
    for _ in range(4 * len(expected)):
        code, back = words(memory, frame + offsets[0]), words(memory, frame + offsets[1])
        if not code or not back:
            return None
        if code[0] & ~_TAGS == expected[len(chain)]:
            chain.append(frame)
            if len(chain) == len(expected):
                return chain
        frame = back[0]
    return None


def positions(memory, chain, frames):
    """Return where a frame has its place in the code: as an address (from 3.11 on) or as a number."""
    if len({last for _, last, _ in frames}) < _LEAST:
        return None
    for offset in range(0, _FRAME * _WORDS, _WORDS):
        starts = {
            (words(memory, frame + offset) or (0,))[0] - frames[at][0] - frames[at][1] for at, frame in enumerate(chain)
        }
        if len(starts) == 1 and 0 < min(starts) < 1024:
            return {"place": offset, "start": min(starts)}
    for offset in range(0, _FRAME * _WORDS, 4):
        for times in (1, 2):
            numbers = [(words(memory, frame + offset) or (0,))[0] & 0xFFFFFFFF for frame in chain]
            if [number * times for number in numbers] == [last for _, last, _ in frames]:
                return {"number": offset, "times": times}
    return None


def codes(memory, known):
    """Return where a code object has its file, name, table of lines and first line, and a text its characters."""
    bodies = [words(memory, id(code), _CODE) for code in known]
    table = "co_linetable" if hasattr(known[0], "co_linetable") else "co_lnotab"
    wanted = (("file", "co_filename"), ("name", "co_name"), ("table", table))
    found = {}
    for name, attribute in wanted:
        addresses = [id(getattr(code, attribute)) for code in known]
        at = [at for at in range(_CODE) if [body[at : at + 1] for body in bodies] == [(one,) for one in addresses]]
        if not at:
            return None
        found[name] = at[0] * _WORDS
    lines = [code.co_firstlineno for code in known]
    packed = [struct.pack("%dQ" % len(body), *body) for body in bodies]
    if len(set(lines)) < _LEAST:
        return None
    for at in range(0, _CODE * _WORDS, 4):
        if [struct.unpack_from("<I", body, at)[0] for body in packed if len(body) > at] == lines:
            found["line"] = at
            text = texts(memory)
            return None if text is None else dict(found, **text)
    return None


def texts(memory):
    """Return where a text has its characters: with one byte each if all are ASCII, else elsewhere and wider."""
    plain, wide = "envkit-watch", "\u0142envkit\u4e2d"
    states = [words(memory, id(text) + 32) for text in (plain, wide)]
    ascii_at = os.pread(memory, 128, id(plain)).find(plain.encode())
    wide_at = os.pread(memory, 128, id(wide)).find(wide.encode("utf-16-le"))
    for shift in (2, 16):  # of the bits that have the width; the latter from 3.14 on
        if all(states) and [state[0] >> shift & 7 for state in states] == [1, 2] and min(ascii_at, wide_at) > 0:
            return {"ascii": ascii_at, "wide": wide_at, "shift": shift}
    return None
