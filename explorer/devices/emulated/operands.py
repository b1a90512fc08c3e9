"""Operands of PTX instructions, from text."""

import re
from collections.abc import Callable, Mapping

from explorer.devices.emulated.findings import UnsupportedPtx
from explorer.devices.emulated.program import (
    Address,
    Immediate,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_FLOAT_BITS = re.compile(r"(-?)0([fFdD])([0-9a-fA-F]+)$")
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?$")
_SUM = re.compile(r"(.+?)\s*([+-])\s*([+-]?(?:0[xX][0-9a-fA-F]+|\d+))$")


def split_operands(text: str) -> list[str]:
    """Split at the commas that stand outside braces and brackets."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "{[(") - (character in "}])")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    if current.strip():
        parts.append(current.strip())
    return parts


def parse_operand(text: str, scoped: Callable[[str], str], registers: Mapping[str, str]) -> Operand:
    """Read one operand; `scoped` gives the entry-wide name of a register or label."""
    if text.startswith("{"):
        items = split_operands(text[1:-1])
        return Vector(tuple(parse_operand(item, scoped, registers) for item in items))
    if text.startswith("["):
        return _address(text[1:-1].strip(), scoped, registers)
    if "|" in text:
        first, second = text.split("|")
        return Pair(
            parse_operand(first.strip(), scoped, registers),
            parse_operand(second.strip(), scoped, registers),
        )
    if text == "_":
        return Sink()
    literal = _immediate(text)
    if literal is not None:
        return literal
    return _named(text, scoped, registers)


def _named(text: str, scoped: Callable[[str], str], registers: Mapping[str, str]) -> Operand:
    negated = text.startswith("!")
    name = scoped(text.lstrip("!").strip())
    if name in registers:
        return Register(name, negated)
    if text.startswith("%"):
        return Special(text)
    total = _SUM.match(text)
    if total:
        return Symbol(scoped(total.group(1)), int(total.group(2) + total.group(3), 0))
    if not re.fullmatch(r"[\w$@.%]+", name):
        raise UnsupportedPtx((f"operand {text}",))
    return Symbol(name)


def _address(text: str, scoped: Callable[[str], str], registers: Mapping[str, str]) -> Operand:
    offset = 0
    total = _SUM.match(text)
    if total:
        sign = -1 if total.group(2) == "-" else 1
        text, offset = total.group(1), sign * int(total.group(3), 0)
    base = parse_operand(text, scoped, registers)
    if not isinstance(base, Register | Immediate | Symbol):
        raise UnsupportedPtx((f"address [{text}]",))
    return Address(base, offset)


def _immediate(text: str) -> Immediate | None:
    if _INTEGER.match(text):
        return Immediate(_integer(text.rstrip("U")))
    bits = _FLOAT_BITS.match(text)
    if bits:
        size = "f32" if bits.group(2) in "fF" else "f64"
        value = int(bits.group(3), 16)
        if bits.group(1):
            value ^= 1 << (31 if size == "f32" else 63)
        return Immediate(value, size)
    if _FLOAT.match(text):
        return Immediate(float(text))
    if text == "WARP_SZ":
        return Immediate(32)
    return None


def _integer(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    octal = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
    return sign * int(digits, 8 if octal else 0)
