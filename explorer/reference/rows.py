"""Rows of inputs: the pattern that makes a row, and the elements of it that each thread reads."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from explorer.model.gpu_spec import WARP

Row = NDArray[np.float64]

FEW_SEAMS = 6
"""Warps, rounds and parts of a row at whose ends lengths are tried, from the row's start on."""


class Pattern(NamedTuple):
    """One kind of row."""

    name: str
    make: Callable[[np.random.Generator, int], Row]
    """Return a row of so many elements, in float64: finite, infinite or NaN."""


@dataclass(frozen=True, slots=True)
class Shares:
    """How a kernel cuts rows over its threads, so that rows can be made for each of them.

    A row is vectors of `width` elements. Of every `block_vectors` of them, which one block has,
    threads 0 to `threads` - 1 take one each in turn, in rounds.
    """

    width: int
    threads: int
    block_vectors: int
    thorough: bool = False
    """Whether subsets of a row are to have all its elements, and some kinds all their rows, as far
    as that is a matter of seconds: for text that a person has edited."""
    suspects: tuple[int, ...] = ()
    """Elements that are to be peaks too, since a row's maximum may omit them."""

    def workers(self, cols: int) -> int:
        """Return the threads, of all blocks, that have a vector of a row."""
        whole, rest = divmod(ceil(cols / self.width), self.block_vectors)
        return whole * min(self.threads, self.block_vectors) + min(self.threads, rest)

    def seams(self, cols: int) -> list[int]:
        """Return numbers of elements of a row at which warps, rounds or blocks' parts end.

        They are the first and the last few multiples of each, and one element more and less.
        """
        of_each = (WARP, self.threads, self.block_vectors)
        ends = [
            vectors * self.width * number
            for vectors in dict.fromkeys(of_each)
            for count in (cols // (vectors * self.width),)
            for number in (*range(1, min(count, FEW_SEAMS) + 1), count - 1, count)
        ]
        beside = (end + more for end in ends for more in (-1, 0, 1))
        return [seam for seam in dict.fromkeys(beside) if 0 < seam < cols]

    def places(self, cols: int, count: int, turn: int = 0) -> Iterator[int]:
        """Yield `count` places of a row, one in the share of each thread, or of `count` threads.

        The threads of a warp have their places in different rounds and at different elements of a
        vector. So do the same threads of other warps. Another `turn` shifts all places by one.
        """
        workers = self.workers(cols)
        rng = np.random.default_rng([cols, count, turn])
        per_warp = max(1, count * WARP // workers)
        steps: Counter[int] = Counter()
        used: set[int] = set()
        for number in range(count):
            first, end = number * workers // count, (number + 1) * workers // count
            worker = int(rng.integers(first, end)) if end > first + 1 else number % workers
            warp = worker // WARP
            place = self._free(cols, worker, (steps[warp], warp + turn, per_warp), used)
            steps[warp] += 1
            used.add(place)
            yield place

    def steps_of_each(
        self, cols: int, number: int, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return at most `count` places in the share of each thread, and the rank of each place.

        The places of a thread are equally far apart, in different vectors. Successive values of
        `number` visit all places in turn. Neighbouring threads get different places.
        """
        thread, turn = _threads_and_turns(self, cols)
        rounds = ceil(min(self.block_vectors, ceil(cols / self.width)) / self.threads)
        apart = ceil(rounds / count) * self.width
        places = np.flatnonzero(turn % apart == (number + thread) % apart)
        return places, turn[places] // apart

    def _free(self, cols: int, worker: int, order: tuple[int, int, int], used: set[int]) -> int:
        """Return a place in the share of a worker, one that is not in `used` if there is any.

        `order` is the number of the place among those of the worker's warp, by how many places the
        warp's are shifted, and how many places the warp has.
        """
        step, moved, per_warp = order
        block, thread = divmod(worker, min(self.threads, self.block_vectors))
        begin = block * self.block_vectors
        vectors = min(self.block_vectors, ceil(cols / self.width) - begin)
        rounds = ceil((vectors - thread) / self.threads)
        place = 0
        for more in range(rounds * self.width):
            at = step * max(1, rounds // per_warp) + step // rounds + moved + more
            element = (step // rounds + moved + more // rounds) % self.width
            vector = begin + at % rounds * self.threads + thread
            place = min(vector * self.width + element, cols - 1)
            if place not in used:
                break
        return place


@lru_cache(maxsize=1)
def _threads_and_turns(shares: Shares, cols: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the thread of each element of a row, and the element's number in its thread's order.

    The result is cached, because hundreds of rows of a check need the same one.
    """
    element = np.arange(cols)
    vector, lane = element // shares.width % shares.block_vectors, element % shares.width
    return vector % shares.threads, vector // shares.threads * shares.width + lane


def places_of(cols: int, count: int, shares: Shares | None, turn: int = 0) -> list[int]:
    """Return about `count` different places of a row, in all shares of it. `turn` gives others."""
    if shares is None or count >= cols:
        return [int(place) for place in spread_places(cols, count)]
    return list(dict.fromkeys(shares.places(cols, count, turn)))


_TAPS = {
    # bits of a state: its taps, by which all states but 0 follow one another
    1: 0b1,
    2: 0b11,
    3: 0b110,
    4: 0b1100,
    5: 0b10100,
    6: 0b110000,
    7: 0b1100000,
    8: 0b10111000,
    9: 0b100010000,
    10: 0b1001000000,
    11: 0b10100000000,
    12: 0b111000001000,
}
"""Taps of maximal linear-feedback shift registers (Xilinx application note 052, table 3)."""


@lru_cache(maxsize=32)
def spread_places(cols: int, count: int) -> NDArray[np.int64]:
    """Return about `count` different places of a row that lie in all of its shares.

    The bits of a place are what a shift register of k bits gives in a row, and any k bits in a row
    tell its state: so of 2^k places each k neighbouring bits of the place's number have every value
    once. These bits are the number of a vector, of a thread, of a warp or of a loop's round, in
    kernels that cut rows by powers of two. At most 4096 places, all of them where they are fewer.
    """
    if count >= cols:
        return np.arange(cols)
    bits = min(max(1, count.bit_length() - 1), max(_TAPS))
    width = max(bits, (cols - 1).bit_length())
    state = np.arange(2**bits, dtype=np.int64)
    place = np.zeros_like(state)
    for bit in range(width):
        place |= (state & 1) << bit
        fed = np.zeros_like(state)
        for tap in range(bits):
            if _TAPS[bits] >> tap & 1:
                fed ^= state >> (bits - 1 - tap) & 1
        state = state >> 1 | fed << (bits - 1)
    place = np.where(place < cols, place, place - 2 ** (width - 1))
    return np.unique(place)
