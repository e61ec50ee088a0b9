"""The checksum of RDB files: CRC-64 with the polynomial of Jones, reflected, which begins with 0."""

from __future__ import annotations

from itertools import repeat

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x95AC9329AC4BC9B5
_LANE_BYTES = 128
_BLOCK_BYTES = 2**20
# Below this, plain Python is faster.
_FEW_BYTES = 2_048

Sums = NDArray[np.uint64]


def _table(bits: int) -> Sums:
    """Return the sum of each number of some bits."""
    sums = np.arange(2**bits, dtype=np.uint64)
    for _ in repeat(None, bits):
        sums = sums >> np.uint64(1) ^ (sums & np.uint64(1)) * np.uint64(_POLYNOMIAL)
    return sums


_OF_BYTE = _table(8).tolist()
_OF_TWO = _table(16)
# Sums that have one byte: a row for each place of it.
_BYTES = np.arange(256, dtype=np.uint64) << 8 * np.arange(8, dtype=np.uint64)[:, np.newaxis]
# What a zero byte behind them makes of those.
_ZERO_BYTE = np.array(_OF_BYTE, np.uint64)[_BYTES & np.uint64(0xFF)] ^ _BYTES >> np.uint64(8)


def _shifted(sums: Sums, shift: Sums) -> Sums:
    """Return what zero bytes behind them make of sums.

    :param shift: what these bytes make of sums that have one byte.
    """
    places = np.ascontiguousarray(sums, "<u8").view(np.uint8).reshape(*sums.shape, 8)
    result: Sums = shift[0].take(places[..., 0])
    for place in range(1, 8):
        result ^= shift[place].take(places[..., place])
    return result


def _shift(count: int) -> Sums:
    """Return what a number of zero bytes make of sums that have one byte."""
    shift, power = _BYTES, _ZERO_BYTE
    while count:
        if count & 1:
            shift = _shifted(shift, power)
        power, count = _shifted(power, power), count >> 1
    return shift


_BLOCK = _shift(_BLOCK_BYTES)
# Of one lane, of two, of four, and so on.
_LANES = [_shift(_LANE_BYTES << level) for level in range((_BLOCK_BYTES // _LANE_BYTES).bit_length())]


class Checksum:
    """The checksum of bytes that arrive one after the other."""

    def __init__(self) -> None:
        self._sum = 0
        self._waiting = bytearray()

    def add(self, data: bytes | memoryview) -> None:
        """Take more bytes."""
        self._waiting += data
        while len(self._waiting) >= _BLOCK_BYTES:
            block = self._waiting[:_BLOCK_BYTES]
            del self._waiting[:_BLOCK_BYTES]
            self._sum = self._after(_BLOCK) ^ _sum_of(block)

    def value(self) -> int:
        """Return the checksum of all bytes so far."""
        count = len(self._waiting)
        if count >= _FEW_BYTES:
            return self._after(_shift(count)) ^ _sum_of(self._waiting)
        total = self._sum
        for byte in self._waiting:
            total = _OF_BYTE[(total ^ byte) & 0xFF] ^ total >> 8
        return total

    def _after(self, shift: Sums) -> int:
        return int(_shifted(np.array([self._sum], np.uint64), shift)[0])


def _sum_of(data: bytearray) -> int:
    """Return the checksum of some bytes by themselves, which many lanes compute side by side."""
    lanes = 1 << (-(-len(data) // _LANE_BYTES) - 1).bit_length()
    # Zero bytes in front change nothing.
    whole = bytes(lanes * _LANE_BYTES - len(data)) + data
    words = np.ascontiguousarray(np.frombuffer(whole, "<u2").reshape(lanes, -1).T)
    sums = np.zeros(lanes, "<u8")
    for column in words:
        lowest = sums.view("<u2")[::4]
        sums = _OF_TWO.take(lowest ^ column) ^ sums >> np.uint64(16)
    for shift in _LANES:
        if len(sums) == 1:
            break
        sums = _shifted(sums[::2], shift) ^ sums[1::2]
    return int(sums[0])
