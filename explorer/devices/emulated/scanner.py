"""Scans PTX text: comments dropped, line numbers kept."""

import re

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)


def _blank(match: re.Match[str]) -> str:
    return "\n" * match.group().count("\n")


class Scanner:
    """A position in a text, moved on by what is taken."""

    def __init__(self, text: str) -> None:
        self.text = _COMMENT.sub(_blank, text.replace("\0", ""))
        self.position = 0
        self._line = 1
        self._counted = 0

    def skip_braces(self) -> None:
        """Pass over a block in braces."""
        depth = 0
        while self.position < len(self.text):
            character = self.text[self.position]
            depth += (character == "{") - (character == "}")
            self.position += 1
            if depth == 0:
                return

    def skip_space(self) -> bool:
        """Pass over blanks; False at the end of the text."""
        text, end = self.text, len(self.text)
        while self.position < end and text[self.position].isspace():
            self.position += 1
        return self.position < end

    def line(self) -> int:
        """The line of the text that the scanner stands on, from 1."""
        self._line += self.text.count("\n", self._counted, self.position)
        self._counted = self.position
        return self._line

    def rest(self, length: int) -> str:
        """The next characters, left where they are."""
        return self.text[self.position : self.position + length]

    def at(self, word: str) -> bool:
        """Whether the text goes on with `word`."""
        return self.text.startswith(word, self.position)

    def take_word(self) -> str:
        """What comes before the next blank."""
        start = self.position
        while self.position < len(self.text) and not self.text[self.position].isspace():
            self.position += 1
        return self.text[start : self.position]

    def take_line(self) -> str:
        """What is left of the line."""
        return self.take_until("\n")

    def take_until(self, mark: str) -> str:
        """What comes before `mark`, which is passed over."""
        end = self.text.find(mark, self.position)
        end = len(self.text) if end < 0 else end
        taken = self.text[self.position : end]
        self.position = end + len(mark)
        return taken.strip()
