"""The four buckets that lengths are told in."""

from __future__ import annotations

EDGES = (50, 200, 1000)
"""Tokens that the first three buckets end with; the fourth has no end."""
BUCKET_NAMES = ("50", "200", "1000", "more")
