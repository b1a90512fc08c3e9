"""The covering arrays that are kept as data are those that would be drawn."""

import pytest
from covering import drawn, kept_arrays, space_of

AGAIN = "draw them anew: python -m tests.covering"
EACH = 48
"""Of so many arrays one is drawn again, which takes some seconds of two minutes."""


def test_each_config_is_legal_and_has_values_of_its_space():
    for asked, configs in kept_arrays():
        space, _ = space_of(asked)
        assert all(map(space.is_legal, configs)), f"{asked}: {AGAIN}"


@pytest.mark.exhaustive
def test_some_are_what_is_drawn():
    for asked, configs in [*kept_arrays()][::EACH]:
        assert configs == drawn(asked), f"{asked}: {AGAIN}"
