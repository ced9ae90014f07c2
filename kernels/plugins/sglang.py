# pyright: basic, reportMissingImports=false
# (SGLang is not installed where types are checked)
"""SGLang: register the attention backend `forebay`.

Entry point of the group `sglang.srt.plugins`, called in every process. Nothing changes until the
engine is started with `--attention-backend forebay`.
"""

from typing import Any

__all__ = ["NAME", "create_backend", "register"]

NAME = "forebay"


def create_backend(runner: Any) -> Any:
    """Build the backend for one model runner; imported here, where SGLang has settled its flags."""
    from .sglang_backend import make_backend  # noqa: PLC0415 - needs SGLang and torch

    return make_backend(runner)


def register() -> None:
    """Offer our backend under the name `forebay`; may be called many times."""
    from sglang.srt.layers.attention.attention_registry import (  # noqa: PLC0415 - only in SGLang
        ATTENTION_BACKENDS,
        register_attention_backend,
    )
    from sglang.srt.server_args import (  # noqa: PLC0415 - only in SGLang
        ATTENTION_BACKEND_CHOICES,
        add_attention_backend_choices,
    )

    if ATTENTION_BACKENDS.get(NAME) is not create_backend:
        register_attention_backend(NAME)(create_backend)
    if NAME not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([NAME])
