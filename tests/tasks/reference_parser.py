r"""A second implementation of the table in `tasks/answers.py`, written to be read, not to be fast.

`tests/tasks/test_answers.py` compares both on generated texts, `proofs/parser.py` on a million.
"""

from __future__ import annotations

import random
import re

SPACES = "\u00a0\u2009\u202f"


def pays(text: str, gold: str, kind: str, strict: bool) -> bool:
    """Whether the text earns the reward for a gold answer in canonical form."""
    for name in ("think", "thinking", "thought", "reasoning"):
        text = re.sub(f"(?i)<(/?){name}>", r"<\1T>", text)
    if text.rfind("<T>") > text.rfind("</T>"):
        return False
    body = text.rpartition("</T>")[2]
    found = read_strict(body, kind) if strict else read_lenient(body, kind)
    return found is not None and found.lower() == gold.lower()


def plain(text: str) -> str:
    for delimiter in (r"\(", r"\)", r"\[", r"\]"):
        text = text.replace(delimiter, "$")
    return text.strip(" \t\r*_`$")


def read_strict(body: str, kind: str) -> str | None:
    lines = body.split("\n")
    while len(lines) > 1 and not plain(lines[-1]):
        lines.pop()
    before, line = "\n".join(lines[:-1]), plain(plain(lines[-1]).removesuffix("."))
    fences = [item for item in lines[:-1] if item.lstrip()[:3] in ("```", "~~~")]
    if len(fences) % 2 or before.count('"') % 2 or before.count("“") > before.count("”"):
        return None
    if line[:8].upper() == "[ANSWER]":
        value = plain(line[8:])
    elif line.startswith("\\boxed{") and box_content(line, 7) == line[7:-1]:
        value = plain(line[7:-1])
    else:
        return None
    inner = re.fullmatch(r"\\(text|textbf|textit|mathrm|mathbf)\{([^{}]*)\}", value)
    value = plain(inner[2]) if inner else value
    if kind == "number":
        return canonical(value) if number_end(value, 0) == len(value) > 0 else None
    if kind == "choice":
        value = value[1:-1].strip() if value[:1] + value[-1:] == "()" else value
        return value.upper() if value.upper() in list("ABCDEFGHIJ") else None
    return " ".join(value.split()) or None


def box_content(text: str, start: int) -> str | None:
    depth = 1
    for end in range(start, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0:
            return text[start:end]
    return None


def read_lenient(body: str, kind: str) -> str | None:
    starts = {r"\[ANSWER\]": "line", r"\\boxed\{": "box"}
    starts |= {} if kind == "number" else {"<answer>": "line"}
    starts |= {r"(?<!\w)answer([ \t]{1,8}is(?!\w)|[ \t]{0,8}[:=])": "line"}
    starts |= {r"(?<![<>!≠/])=": "same line"} if kind == "number" else {}
    for pattern, place in starts.items():
        for match in reversed(list(re.finditer(pattern, body, re.IGNORECASE))):
            rest = body[match.end() :]
            if place == "box":
                rest = box_content(body, match.end()) or ""
            elif place == "line" and rest.strip():
                blank = len(rest) - len(rest.lstrip())
                rest = rest[:blank] + rest[blank:].split("\n")[0]
            else:
                rest = rest.split("\n")[0]
            if (found := read_start(rest, kind)) is not None:
                return found or None
    return read_end(body, kind)


def read_start(text: str, kind: str) -> str | None:
    if kind == "text":
        line = re.split(r"(?i)\s*(?:\[/ANSWER\]|</answer>)", text)[0]
        value = plain(line.strip().removeprefix(":").strip()).removesuffix(".")
        inner = re.fullmatch(r"\\(text|textbf|textit|mathrm|mathbf)\{([^{}]*)\}", value)
        return " ".join((plain(inner[2]) if inner else value).split()) or None
    at = 0
    while lead := re.match(r"[\s:=*_`$(\[{\"'“‘]|\\[(\[]|\\boxed\{|\\text\{", text[at:]):
        at += lead.end()
    if kind == "choice":
        letter = text[at : at + 1].upper()
        alone = not is_word(text[at + 1 : at + 2]) and not is_word(text[at - 1 : at] if at else "")
        return letter if letter and letter in "ABCDEFGHIJ" and alone else None
    end = number_end(text, at)
    operation = r"[ \t]*([-+*/^×÷·−]|\\times|\\cdot)[ \t*]*[0-9(\\]"
    if end < 0 or re.match(operation, text[end:]):
        return None
    return canonical(text[at:end])


def read_end(body: str, kind: str) -> str | None:
    if kind == "text":
        lines = body.split("\n")
        while len(lines) > 1 and not plain(lines[-1]):
            lines.pop()
        return read_start(lines[-1], "text")
    last = None
    at = 0
    while at < len(body):
        if kind == "choice":
            neighbours = body[max(0, at - 1) : at] + body[at + 1 : at + 2]
            if body[at] in "ABCDEFGHIJ" and not any(map(is_word, neighbours)):
                last = body[at]
        elif (end := number_end(body, at)) >= 0:
            last, at = canonical(body[at:end]), end - 1
        at += 1
    return last or None


def is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def number_end(text: str, start: int) -> int:
    """Where the number that starts here ends; -1 if none does."""
    at = start
    before = text[at - 1] if at else " "
    if text[at : at + 1] in list("+-−") and not is_word(before) and before not in ")]}%":
        at, before = at + 1, text[at]
    if is_word(before) or before == ".":
        return -1
    at += text[at : at + 1] == "$"
    digits = at
    while text[at : at + 1] in list("0123456789"):
        at += 1
    if 1 <= at - digits <= 3:
        grouped = at
        while separator := re.match(rf"(,|\{{,\}}|\\,|[{SPACES}])[0-9]{{3}}", text[grouped:]):
            grouped += separator.end()
        at = at if text[grouped : grouped + 1] in list("0123456789") else grouped
    if decimals := re.match(r"\.[0-9]+", text[at:]):
        at += decimals.end()
    elif at == digits:
        return -1
    return -1 if re.match(r"[^\W0-9]*[0-9]", text[at:]) else at


def canonical(text: str) -> str:
    """The number in canonical form; empty if it has too many digits."""
    whole, _, decimals = "".join(c for c in text if c in "0123456789.").partition(".")
    whole = whole.lstrip("0") or "0"
    if len(whole + decimals) > 40:
        return ""
    value = whole + ("." + decimals if decimals else "")
    return "-" + value if text[0] in "-−" and value.strip("0.") else value


PIECES = [
    *("[ANSWER] ", "[ANSWER]", "[answer] ", "\\boxed{", "}", "<answer>", "</answer>", "answer is "),
    *("the answer: ", "= ", "=", "\n", "\n", "\n", " ", " ", "**", "`", "$", "```\n", ".", ","),
    *('"', "28", "28", "28", "-28", "27", "1,234", "1234", "28.0", ".5", "1e5", "3/4", "+", "-"),
    *("−", "*", "B", "B", "(B)", "(", ")", "b", "A", "C", "Rome", "Rome", "not ", "or ", "kg"),
    *("\\text{", "_", "<think>", "</think>", "<thinking>", "“", "”", "\\[", "\\]", "{", "[", "]"),
    *(":", "%", "\u00a0", "28{,}000", "x2", "2x", "٣", "\u200b", "[/ANSWER]", "million", "is not"),
    *("~~", "√", "27 or 28"),
]
GOLDS = {
    "number": ("28", "-28", "27", "1234", "0.5"),
    "choice": ("B", "A", "C"),
    "text": ("Rome", "28"),
}


def generate_text(rng: random.Random) -> str:
    """Random pieces of answers; often a well-formed last line, so that strict pays sometimes."""
    text = "".join(rng.choices(PIECES, k=rng.randrange(1, 10)))
    if rng.random() < 0.5:
        value = rng.choice(
            ["28", "**28**", "1,234", "(B)", "B", "Rome", "$28$", "28.", "2 8", "28 kg"]
        )
        form = rng.choice(
            ["[ANSWER] {}", "\\boxed{{{}}}", "**[ANSWER] {}**", "[ANSWER] {}\n", "So {}"]
        )
        text += rng.choice(["\n", "", "\n"]) + form.format(value)
    return text + rng.choice(["", "", "", rng.choice(PIECES)])
