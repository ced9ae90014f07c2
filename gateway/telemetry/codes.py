"""Which words that others chose may stand in a log or a label."""

from __future__ import annotations

import re

OTHER = "other"
_CODE = re.compile(r"[A-Za-z0-9._-]{1,64}")


def code(text: str) -> str:
    """Return a code or an id as it is; anything that is more than one word is `other`."""
    if not text or (len(text) <= 64 and text.isascii() and text.isalnum()):
        return text
    return text if _CODE.fullmatch(text) else OTHER
