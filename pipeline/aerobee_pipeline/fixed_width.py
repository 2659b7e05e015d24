"""Tables of bytes as binary Arrow arrays, a value for each row, without a copy."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def binary_rows(table: npt.NDArray[np.uint8]) -> pa.Array:
    """The rows of a table of bytes as binary values. The array keeps the table alive, and shows later changes of it."""
    count, width = table.shape
    return pa.Array.from_buffers(
        pa.binary(), count, [None, _offsets(count, width), pa.py_buffer(np.ascontiguousarray(table))]
    )


@lru_cache(maxsize=64)
def _offsets(count: int, width: int) -> pa.Buffer:
    assert count * width < 1 << 31, "the tables are those of one request or one batch"
    return pa.py_buffer(np.arange(0, count * width + 1, width, dtype=np.int32))
