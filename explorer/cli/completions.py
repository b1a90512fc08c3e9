"""What a shell offers where a value of an option or an argument is to be completed.

Each function gets what is typed so far, as Typer calls them, and with a context what stands before
that. It returns the values that begin with it, some with a word of help. None of them raises: a
shell has no place for an error.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from typer import Context

from explorer.ops import DEFAULT_OP, OPERATORS

Offered = list[str | tuple[str, str]]
"""Values, or values with a help text."""

Completion = Callable[..., Offered]


def among(*values: str) -> Completion:
    """Complete one of these values."""

    def offer(incomplete: str) -> Offered:
        return _that_begin(incomplete, values)

    return offer


def several(*values: str) -> Completion:
    """Complete the last of several values with commas between them; each is offered once."""

    def offer(incomplete: str) -> Offered:
        before, comma, last = incomplete.rpartition(",")
        taken = set(before.split(","))
        left = [value for value in values if value not in taken]
        return [f"{before}{comma}{value}" for value in left if value.startswith(last)]

    return offer


def results(context: Context, incomplete: str) -> Offered:
    """Complete some of the results on request of the op that is named before them."""
    operator = OPERATORS.get(context.params.get("op", DEFAULT_OP))
    return several(*operator.on_request)(incomplete) if operator else []


def devices(incomplete: str) -> Offered:
    """Complete a device on which a search runs: a GPU, or a recording that is there."""
    from explorer.devices.recording import list_recordings

    recorded = (f"recorded:{file.name}" for file in list_recordings())
    return _that_begin(incomplete, ("auto", "cuda:0", *recorded))


def recordings(incomplete: str) -> Offered:
    """Complete the name of a recording."""
    from explorer.devices.recording import list_recordings

    return _that_begin(incomplete, (file.name for file in list_recordings()))


def strategies(incomplete: str) -> Offered:
    """Complete the name of a search strategy."""
    from explorer.tuning.benchmark import STRATEGIES

    return _that_begin(incomplete, STRATEGIES)


def variants(incomplete: str) -> Offered:
    """Complete what WHAT may name: best, heuristic or a preset; a shell offers files itself."""
    from explorer.presets.published import PRESETS

    offered: Offered = [
        ("best", "the best kernel of the stored search"),
        ("heuristic", "the kernel that is taken without a search"),
        *((preset.name, preset.sentence) for preset in PRESETS),
    ]
    return [line for line in offered if line[0].startswith(incomplete)]


def presets(incomplete: str) -> Offered:
    """Complete the name of a preset."""
    from explorer.presets.published import PRESETS

    return _that_begin(incomplete, (preset.name for preset in PRESETS))


def parameters(incomplete: str) -> Offered:
    """Complete the name of a parameter of the space."""
    from explorer.model.config import MEANING

    return _that_begin(incomplete, MEANING)


def conditions(incomplete: str) -> Offered:
    """Complete NAME=VALUE: the name, then one of its values."""
    from explorer.model.element import USUAL_TYPE
    from explorer.space import parameters as all_parameters

    known = all_parameters(USUAL_TYPE)
    name, equals, _ = incomplete.partition("=")
    if not equals:
        return _that_begin(incomplete, (f"{one}=" for one in known))
    return _that_begin(incomplete, (f"{name}={value}" for value in known.get(name, ())))


def guides(incomplete: str) -> Offered:
    """Complete the name of a guide."""
    folder = Path(__file__).resolve().parents[1] / "guide"
    return _that_begin(incomplete, sorted(path.stem for path in folder.glob("*.md")))


def _that_begin(incomplete: str, values: Iterable[str]) -> Offered:
    return [value for value in values if value.startswith(incomplete)]
