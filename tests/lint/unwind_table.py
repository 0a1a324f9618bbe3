#!/usr/bin/env python3
"""Whether every exception finds its way: the search table of an ELF file's unwind information (.eh_frame_hdr).

usage: unwind_table.py FILE...

GCC describes functions without code (what cannot be reached is dropped) by entries of length zero. A linker that keeps
one in the table, at the address of the function that follows, hides that function's own entry: an exception that
passes through it then ends the process with abort(). GNU ld leaves such entries out; lld 14 does not.
"""
import pathlib
import struct
import sys


def sections(data):
    assert data[:6] == b"\x7fELF\x02\x01", "a 64-bit little-endian ELF file is wanted"
    offset, = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", data, offset + i * size) for i in range(count)]
    strings = heads[names][4]
    for name, _, _, address, at, length in heads:
        end = data.index(b"\0", strings + name)
        yield data[strings + name:end].decode(), address, at, length


def empty_entries(data):
    """(entries, addresses whose entry covers no code)"""
    place = {name: (address, at) for name, address, at, _ in sections(data)}
    address, at = place[".eh_frame_hdr"]
    frame_address, frame_at = place[".eh_frame"]
    version, pointer, count_kind, table_kind = data[at:at + 4]
    assert (version, count_kind, table_kind) == (1, 0x03, 0x3B) and pointer == 0x1B, "another encoding than GCC's"
    count, = struct.unpack_from("<I", data, at + 8)
    empty = []
    for i in range(count):
        start, entry = struct.unpack_from("<ii", data, at + 12 + 8 * i)
        # Length, CIE pointer, start (relative), range: four bytes each, as GCC encodes them.
        covered, = struct.unpack_from("<I", data, frame_at + (address + entry - frame_address) + 12)
        if covered == 0:
            empty.append(address + start)
    return count, empty


def main(paths):
    failed = False
    for path in paths:
        count, empty = empty_entries(pathlib.Path(path).read_bytes())
        if count == 0 or empty:
            failed = True
            print(f"{path}: {len(empty)} of {count} entries cover no code: {', '.join(map(hex, empty[:10]))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
