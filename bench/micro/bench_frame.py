# SPDX-License-Identifier: Apache-2.0
"""Time the extraction of frames from received bytes; the budget is in `frame.py`."""

from timing import compare_and_print

from cometmq.remoting import RawCommand, RequestCode
from cometmq.remoting.frame import FrameReader
from cometmq.testing.remoting.frames import encode_frame

EXT = dict.fromkeys("abcdefghijklm", "12345678")
FRAME = encode_frame(RawCommand(code=RequestCode.SEND_MESSAGE_V2, ext=EXT, body=b"x" * 128))
CHUNK = FRAME * 32
READER = FrameReader()


def read_by_slices(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """Extract frames with the obvious implementation, for comparison."""
    frames = []
    while data:
        length = int.from_bytes(data[:4], "big")
        header_end = 8 + int.from_bytes(data[5:8], "big")
        frames.append((data[4], data[8:header_end], data[header_end : 4 + length]))
        data = data[4 + length :]
    return frames


def feed_in_halves() -> None:
    """Feed a frame that arrives in two chunks."""
    READER.feed(FRAME[:100])
    READER.feed(FRAME[100:])


def main() -> None:
    """Print one line per operation; the figures for a chunk cover its 32 frames."""
    compare_and_print(
        {
            "feed one frame": (lambda: READER.feed(FRAME), 600),
            "feed 32 frames": (lambda: READER.feed(CHUNK), 32 * 250),
            "32 frames by slices": (lambda: read_by_slices(CHUNK), None),
            "a frame in two chunks": (feed_in_halves, None),
        }
    )


if __name__ == "__main__":
    main()
