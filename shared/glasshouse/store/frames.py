"""Frames: a step's rows as one block of zstd, told good from bad."""

from __future__ import annotations

from typing import Any

import zstandard

from glasshouse.errors import RecordError
from glasshouse.store.manifest import Entry
from glasshouse.store.rollout_rows import decode


def checked(entry: Entry, frame: bytes) -> list[dict[str, Any]]:
    """The rows of a frame that is what its line of the manifest promises."""
    if len(frame) < entry.bytes:
        raise RecordError(f"{entry.file} ends {entry.bytes - len(frame):,} bytes too early")
    if not entry.holds(frame):
        raise RecordError("the frame's checksum is wrong")
    try:
        rows = decode(zstandard.ZstdDecompressor().decompress(frame, max_output_size=entry.raw))
    except (zstandard.ZstdError, ValueError) as error:
        raise RecordError(f"the frame cannot be decoded: {error}") from None
    if len(rows) != entry.rows or any(row["step"] != entry.step for row in rows):
        raise RecordError("the frame holds other rows than promised")
    return rows


def whole_frames(data: bytes, most: float = float("inf")) -> tuple[list[bytes], bytes]:
    """The contents of frames that stand one after another (at most so many), and what follows."""
    found: list[bytes] = []
    while data and len(found) < most:
        stream = zstandard.ZstdDecompressor().decompressobj()
        try:
            content = stream.decompress(data)
        except zstandard.ZstdError:  # its checksum is wrong, or it is no frame
            break
        if not stream.eof:
            break
        found.append(content)
        data = stream.unused_data
    return found, data
