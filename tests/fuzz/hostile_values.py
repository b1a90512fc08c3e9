"""Hostile values and changes for property tests, and the bounds that all of them must keep."""

import copy
import os
import random
import resource
import signal
import time
from contextlib import contextmanager

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

MOST_SECONDS = 20
"""For one example; the slowest, a search, takes half a second on an idle core."""

MOST_MIB = 400
"""By which one example may let the process grow."""

SPECIAL = [
    *(None, True, False, 0, 1, -1, 2, 255, 2**31, 2**53 + 1, 2**63, 2**64, 10**39, 10**400),
    *(0.0, -0.0, 0.5, -1.5, 1e-320, 1e-7, 1e15, 1e300, 1.7e308),
    *(float("nan"), float("inf"), float("-inf")),
    *("", " ", "a", "0", "NaN", "\ud800", "\x1b[2J", "\0", "a\nb", "µ" * 1000, "sm_10", "f32"),
    *([], [[]], {}, [0], [-1], [None], [""], {"": 0}, {"threads": 0}, [[[[[[[[[[]]]]]]]]]]),
]

json_values = st.sampled_from(SPECIAL) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


def places(value, before=()):
    """Where a JSON value can be changed: the paths of all values in it."""
    found = [before] if before else []
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for step, one in inner:
            found += places(one, (*before, step))
    return found


@st.composite
def changed(draw, value, most=3):
    """A JSON value with a few of its parts replaced, removed, doubled or swapped."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, most))):
        there = places(value)
        if not there:
            break
        *path, last = draw(st.sampled_from(there))
        within = value
        for step in path:
            within = within[step]
        action = draw(st.sampled_from(["replace", "replace", "remove", "double", "swap"]))
        if action == "remove":
            del within[last]
        elif action == "double" and isinstance(within, list):
            within.insert(last, copy.deepcopy(within[last]))
        elif action == "swap":
            *other_path, other = draw(st.sampled_from(there))
            source = value
            for step in other_path:
                source = source[step]
            within[last] = copy.deepcopy(source[other])
        else:
            within[last] = copy.deepcopy(draw(json_values))
    return value


@st.composite
def changed_bytes(draw, whole, most=4):
    """Bytes with a few of them flipped, cut out, put in, doubled, or all after some cut off.

    Hypothesis prefers the beginning of what it draws from, and a file is damaged anywhere: so it
    draws a seed.
    """
    data, rng = bytearray(whole), random.Random(draw(st.integers(0, 2**32)))
    for _ in range(rng.randint(1, most)):
        if not data:
            break
        place, length = rng.randrange(len(data)), rng.randint(1, 64)
        action = rng.choice(["flip", "flip", "flip", "cut", "insert", "double", "end"])
        if action == "flip":
            data[place] ^= rng.randint(1, 255)
        elif action == "cut":
            del data[place : place + length]
        elif action == "insert":
            data[place:place] = rng.randbytes(length)
        elif action == "double":
            data[place:place] = data[place : place + length]
        else:
            del data[place:]
    return bytes(data)


class TooLong(BaseException):
    """An example that does not end."""


@contextmanager
def bounded():
    """Fail where the work within takes too long, or too much memory; a hang is ended."""

    def late(*_):
        raise TooLong

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    previous, started = signal.signal(signal.SIGALRM, late), time.monotonic()
    signal.alarm(MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    assert time.monotonic() - started < MOST_SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_MIB * 1024


def quick(examples):
    """Settings of the ordinary run: the same few examples each time."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def thorough(examples):
    """Settings of `pytest -m exhaustive`: a tenth of `examples`, the same ones each time.

    EXPLORER_FUZZ=10 runs them all, new ones each time, which takes an hour on one core.
    """
    times = os.environ.get("EXPLORER_FUZZ")
    return settings(
        max_examples=max(1, examples * int(times or "1") // 10),
        derandomize=times is None,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
