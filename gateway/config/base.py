"""What every section is built of: strict keys, and values with units and forms of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)

from forebay.adapters.sim_engine import read_fault
from forebay.scheduler.engine_profiles import find_profile

from .units import Substituted, parse_bytes, parse_count, parse_duration, parse_share, shown
from .values import check_digest, check_engine_url, check_secret, check_url

if TYPE_CHECKING:
    from collections.abc import Callable


def read_duration(value: object, info: ValidationInfo) -> object:
    """Return seconds."""
    # Only in a file does a bare number leave open what it means; the loader says so by a context.
    return parse_duration(value) if info.context or isinstance(value, str) else value


def checked(check: Callable[[str], object]) -> BeforeValidator:
    """Judge a text by `check`, which returns it in its plain form; pydantic refuses the rest.

    Before pydantic does, which forgets that a text came from the environment.
    """
    return BeforeValidator(lambda value: check(value) if isinstance(value, str) else value)


def _told_by(judge: Callable[[str], object], what: str) -> BeforeValidator:
    """Judge a text by what an engine says of it, which may repeat the text."""

    def check(value: str) -> str:
        try:
            judge(value)
        except ValueError as error:
            secret = isinstance(value, Substituted)
            raise ValueError(f"{shown(value)} is no {what}" if secret else str(error)) from None
        return value

    return checked(check)


Duration = Annotated[float, BeforeValidator(read_duration)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Count = Annotated[int, BeforeValidator(parse_count)]
Share = Annotated[float, BeforeValidator(parse_share)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
ModelName = Annotated[str, Field(min_length=1, max_length=256)]
Url = Annotated[str, checked(check_url)]
EngineUrl = Annotated[str, checked(check_engine_url)]
Secret = Annotated[SecretStr, checked(check_secret)]
Digest = Annotated[str, checked(check_digest)]
Fault = Annotated[str, _told_by(read_fault, "fault")]
Profile = Annotated[str, _told_by(find_profile, "profile")]


class Section(BaseModel):
    """A misspelt key must be an error, never silently dropped."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    later: ClassVar[frozenset[str]] = frozenset()
    """Keys that a later version will know."""
    later_values: ClassVar[dict[str, frozenset[str]]] = {}
    """Values of known keys that a later version will know."""
    flags: ClassVar[frozenset[str]] = frozenset()
    """Keys of numbers that may be true or false, too."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_number(cls, value: object, info: ValidationInfo) -> object:
        assert info.field_name is not None
        flag = cls.model_fields[info.field_name].annotation is bool or info.field_name in cls.flags
        if isinstance(value, bool) and not flag:
            raise ValueError(_no_flag(cls.model_fields[info.field_name].annotation))
        return value


def _no_flag(annotation: Any) -> str:
    """Say what to write in the place of true or false."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, Section):
            needed = [name for name, field in kind.model_fields.items() if field.is_required()]
            return "must be a mapping" + ("" if needed else "; {} takes every default")
    return "must not be true or false"
