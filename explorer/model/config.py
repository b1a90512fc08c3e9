"""One point of the parameter space: plain data, which passes to codegen beside the problem."""

import json
from dataclasses import dataclass, fields
from typing import Any

from explorer.model.errors import InvalidInput
from explorer.model.parameters import CHOICES, POWERS_OF_TWO, RANGES
from explorer.system.plain_data import parse_json, read_object, shown


@dataclass(frozen=True, slots=True)
class Config:
    """The parameters of a kernel. `explorer space` prints their values and rules.

    The defaults are a reasonable kernel for rows of a few thousand elements.
    """

    algorithm: str = "three-pass"
    threads: int = 256
    threads_per_row: int = 256
    vector_bytes: int = 16
    reduction: str = "shuffle"
    cache: str = "registers"
    cache_holds: str = "exp"
    exp: str = "exp2f"
    normalise: str = "reciprocal"
    unroll: int = 1
    load_hint: str = "default"
    store_hint: str = "default"
    min_blocks: int = 1
    static_cols: bool = True
    rows_per_thread: int = 1
    launches: str = "one"
    persistent: int = 0
    staging: str = "direct"
    sum: str = "plain"
    cluster: int = 1
    exchange: str = "barrier"
    row_order: str = "ascending"
    stages: int = 1
    arrangement: str = "striped"

    @property
    def rows_per_block(self) -> int:
        """Rows that one block works on at a time."""
        return self.threads // self.threads_per_row * self.rows_per_thread

    @property
    def splits_launches(self) -> bool:
        """Whether two launches each read a row's parts, which are combined in between."""
        return self.launches in ("two", "two-overlapped")

    @property
    def uses_redux(self) -> bool:
        """Whether one instruction reduces the maximum of a warp."""
        return "redux" in self.reduction

    @property
    def first_warp_folds(self) -> bool:
        """Whether only the first warp, of a row or of a cluster's block, combines all values."""
        return self.reduction.endswith("first-warp")

    @property
    def rewrites(self) -> bool:
        """Whether the output is written twice, first with exponentials."""
        return self.cache == "output"

    def as_dict(self) -> dict[str, Any]:
        """Return parameter names to values, in the order of the fields."""
        return {name: getattr(self, name) for name in self.__slots__}  # asdict takes 50 us

    def to_json(self, *, brief: bool = False) -> str:
        """Return one line of JSON; `brief` leaves out the parameters at their defaults."""
        values = self.as_dict()
        if brief:
            default = Config()
            values = {k: v for k, v in values.items() if v != getattr(default, k)}
        return json.dumps(values, separators=(",", ":"))

    def check_known(self) -> None:
        """Raise InvalidInput for a value with which no kernel of any problem can be emitted."""
        for name, value in self.as_dict().items():
            fault = _unknown(name, value)
            if fault:
                raise InvalidInput(f"config parameter '{name}' is {value!r}; it must be {fault}")
        if self.threads > 1 and self.threads % 32:
            raise InvalidInput(
                f"config parameter 'threads' is {self.threads}; it must be 1 or a multiple of 32"
            )
        if self.threads % self.threads_per_row:
            raise InvalidInput(
                f"config parameter 'threads_per_row' is {self.threads_per_row}; it must divide "
                f"threads, which is {self.threads}"
            )

    @classmethod
    def from_dict(cls, values: Any) -> "Config":
        """Read what `as_dict` wrote; parameters left out take their default.

        Raises InvalidInput for a parameter, or a value of one, that is not known.
        """
        known = {field.name: type(field.default) for field in fields(cls)}
        for name, value in read_object(values, "config").items():
            if name not in known:
                raise InvalidInput(
                    f"config parameter {shown(name)} is not known; there are {', '.join(known)}"
                )
            if type(value) is not known[name]:
                raise InvalidInput(
                    f"config parameter '{name}' is {shown(value)}; it must be of type "
                    f"{known[name].__name__}"
                )
            fault = _unknown(name, value)
            if fault:
                raise InvalidInput(
                    f"config parameter '{name}' is {shown(value)}; it must be {fault}"
                )
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> "Config":
        """Read a config as `to_json` writes it; raises InvalidInput."""
        try:
            values = read_object(parse_json(text, "config"), "config")
        except InvalidInput as error:
            raise InvalidInput(f'{error}; write it as {{"threads":256}}') from None
        return cls.from_dict(values)

    def differences(self, other: "Config") -> dict[str, tuple[Any, Any]]:
        """Return the parameters in which two configs differ: name to (own value, other's)."""
        mine, theirs = self.as_dict(), other.as_dict()
        return {k: (mine[k], theirs[k]) for k in mine if mine[k] != theirs[k]}


def _unknown(name: str, value: Any) -> str:
    """Return what an invalid parameter must be, in words; empty if the value is valid."""
    if name in CHOICES:
        return "" if value in CHOICES[name] else f"one of {', '.join(CHOICES[name])}"
    if name not in RANGES:
        return ""
    least, greatest = RANGES[name]
    power = name in POWERS_OF_TWO
    if least <= value <= greatest and not (power and value & (value - 1)):
        return ""
    return f"{'a power of two ' if power else ''}from {least} to {greatest}"
