"""The section `frozen` of a study file: what was registered, when, and a hash of it."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from glasshouse.config.schema import Section


class Frozen(Section):
    """Written by `glasshouse study freeze`; see `glasshouse.study.freeze`."""

    date: datetime.date
    """The day on which the file was frozen (UTC)."""
    sha256: str
    """Hash of `content`."""
    content: dict[str, Any] = Field(min_length=1)
    """A copy of bases, seeds, config, arms and questions, so that later changes can be listed."""

    @model_validator(mode="after")
    def _check_hash(self) -> Self:
        if self.sha256 != hash_content(self.content):
            raise ValueError(
                "its content does not match its sha256: the section was edited by hand. Restore it, "
                "for example with git"
            )
        return self


def hash_content(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content as JSON with sorted keys: independent of comments, order and layout.

    Example: `hash_content({"seeds": [0, 1]})` starts with "c20d".
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
