"""Engine profiles in files: what `calibrate` writes and `replay` reads."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import msgspec

from forebay.scheduler.engine_profiles import Profile

if TYPE_CHECKING:
    from pathlib import Path


def read_profile(path: Path) -> Profile:
    """Read a profile; raises ValueError that says what is wrong, OSError when it cannot be read."""
    try:
        members = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
        members.pop("measured", None)
        return msgspec.convert(members, Profile, strict=True)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def write_profile(path: Path, profile: Profile, measured: object) -> None:
    """Write a profile, and beside it what it was fitted to."""
    members = {**asdict(profile), "measured": measured}
    path.write_text(json.dumps(members, indent=2) + "\n", encoding="utf-8")
