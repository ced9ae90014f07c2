"""Cut prompts into tokens here, by a model's own files: `tokenizer.json` and its chat template.

Special tokens part a text before anything else looks at it, so what stands between two of them is
cut by itself and can be remembered: a conversation that goes on costs what is new of it. That is
checked on some texts when the files are read, and left where it does not hold.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from forebay.gateway.extras import needs
from forebay.policies.contracts import ConfigError, Route
from forebay.prefixcache.blocks import token_bytes

from .template import ChatTemplate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .template import Dialect

_CACHED_BYTES = 32 << 20
_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")
_CHECKED = ("Hello world", " two  spaces", "line\nbreak", "x", "Ünïcödé — 漢字 🙂", "a1b22 c333")


class Encoder(Protocol):
    """What of `tokenizers.Tokenizer` is used; what it returns has `ids`."""

    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> Any:
        """Cut a text."""
        ...


class LocalTokens:
    """One model's tokenizer. For one thread at a time."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        special: tuple[str, ...] = (),
        template: ChatTemplate | None = None,
    ) -> None:
        self._encoder = encoder
        self._template = template
        self._parted: re.Pattern[str] | None = None
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached = 0
        if special:
            longest_first = sorted(special, key=len, reverse=True)
            self._parted = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
            if not self._parts_hold(special):
                self._parted = None

    @property
    def remembers(self) -> bool:
        """Whether what was cut before is cut only once."""
        return self._parted is not None

    def tokens(self, route: Route, body: Mapping[str, Any]) -> bytes | None:
        """Return a prompt's tokens, four bytes each; None where they cannot be known.

        Raises whatever the template raises.
        """
        if route is Route.CHAT:
            if self._template is None:
                return None
            text = self._template.render(body)
            if text is None:
                return None
            return self.cut(text, special=bool(body.get("add_special_tokens", False)))
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            prompt = cast("list[Any]", prompt)[0]
        if isinstance(prompt, list):
            return token_bytes(cast("list[int]", prompt))
        if not isinstance(prompt, str):
            return None
        return self.cut(prompt, special=bool(body.get("add_special_tokens", True)))

    def cut(self, text: str, *, special: bool) -> bytes:
        """Cut a text; `special`: with what the model wants at its beginning and end."""
        if self._parted is None or special:
            return token_bytes(self._encoder.encode(text, add_special_tokens=special).ids)
        return b"".join(self._piece(piece) for piece in self._parted.split(text) if piece)

    def _piece(self, piece: str) -> bytes:
        found = self._cache.get(piece)
        if found is not None:
            self._cache.move_to_end(piece)
            return found
        made = token_bytes(self._encoder.encode(piece, add_special_tokens=False).ids)
        self._cache[piece] = made
        self._cached += len(piece) + len(made)
        while self._cached > _CACHED_BYTES:
            old, tokens = self._cache.popitem(last=False)
            self._cached -= len(old) + len(tokens)
        return made

    def _parts_hold(self, special: tuple[str, ...]) -> bool:
        """Check that the parts of a text are cut as the whole is."""
        assert self._parted is not None
        mark = special[0]
        for one in _CHECKED:
            for other in _CHECKED:
                text = f"{mark}{one}{special[-1]}{other}{mark}"
                whole = self._encoder.encode(text, add_special_tokens=False).ids
                if b"".join(map(self._piece, filter(None, self._parted.split(text)))) != (
                    token_bytes(whole)
                ):
                    return False
        return True


def load(folder: str, *, dialect: Dialect = "vllm") -> LocalTokens:
    """Read a model's folder, or a `tokenizer.json`. Raises ConfigError where it cannot be used."""
    try:
        from tokenizers import Tokenizer  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(needs("a tokenizer in files", "tokenizer")) from error
    path = Path(folder)
    file = path if path.is_file() else path / "tokenizer.json"
    try:
        encoder = Tokenizer.from_file(str(file))
    except Exception as error:
        raise ConfigError(f"there is no tokenizer that can be read at {str(file)!r}") from error
    about = _read_json(file.parent / "tokenizer_config.json")
    source = _template_source(file.parent, about)
    names = {name: text for name in _NAMES if (text := _word(about.get(name))) is not None}
    template = None if source is None else ChatTemplate(source, names=names, dialect=dialect)
    added: list[dict[str, Any]] = _read_json(file).get("added_tokens") or []
    special = tuple(
        str(token["content"])
        for token in added
        if token.get("special") and not (token.get("lstrip") or token.get("rstrip"))
        and not token.get("normalized") and not token.get("single_word")
    )  # fmt: skip
    return LocalTokens(encoder, special=special, template=template)


def _template_source(folder: Path, about: Mapping[str, Any]) -> str | None:
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    said = about.get("chat_template")
    if isinstance(said, list):
        named = {str(t["name"]): t["template"] for t in cast("list[dict[str, Any]]", said)}
        said = named.get("default")
    return said if isinstance(said, str) else None


def _word(said: Any) -> str | None:
    if isinstance(said, dict):
        said = cast("dict[str, Any]", said).get("content")
    return said if isinstance(said, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
