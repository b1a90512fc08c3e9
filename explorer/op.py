"""What can be computed of a row, and how its elements can be masked."""

from enum import StrEnum

from explorer.errors import InvalidInput


class Op(StrEnum):
    """An operation on each row; a backward one takes the forward's output and its gradient."""

    SOFTMAX = "softmax"
    LOG_SOFTMAX = "log_softmax"
    SOFTMAX_BACKWARD = "softmax_backward"
    LOG_SOFTMAX_BACKWARD = "log_softmax_backward"

    @property
    def is_backward(self) -> bool:
        """Whether it computes the gradient of the input."""
        return self.value.endswith("_backward")

    @property
    def is_log(self) -> bool:
        """Whether it is of the logarithm of softmax."""
        return self.value.startswith("log_")

    @property
    def forward(self) -> "Op":
        """The operation whose gradient this is, or itself."""
        return Op(self.value.removesuffix("_backward"))

    @classmethod
    def parse(cls, text: str) -> "Op":
        """Read an op's name; raises InvalidInput naming those there are."""
        try:
            return cls(text)
        except ValueError:
            raise InvalidInput(
                f"op '{text}' is not known; choose one of {', '.join(cls)}"
            ) from None


class Mask(StrEnum):
    """Which elements have no share in their row: as if they were -inf."""

    NONE = "none"
    CAUSAL = "causal"
    LENGTHS = "lengths"
    ADDITIVE = "additive"

    @classmethod
    def parse(cls, text: str) -> "Mask":
        """Read a mask's name; raises InvalidInput naming those there are."""
        try:
            return cls(text)
        except ValueError:
            raise InvalidInput(
                f"mask '{text}' is not known; choose one of {', '.join(cls)}"
            ) from None
