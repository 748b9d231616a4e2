"""The kernel of program.py's Triton client; Triton reads its source from here."""

import triton
import triton.language as tl


@triton.jit
def fill(values, count, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(values + at, at, mask=at < count)
