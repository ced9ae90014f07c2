# pyright: basic, reportMissingImports=false
# (vLLM is not installed where types are checked)
"""vLLM: register the attention backend, in every process that vLLM starts.

Entry point of the group `vllm.general_plugins`. Nothing changes until the engine is started with
`--attention-backend CUSTOM`: vLLM knows third-party backends by that one name, and looks it up by
what a backend's get_name() returns, so FOREBAY is what we log.
"""

import logging

__all__ = ["BACKEND", "register"]

logger = logging.getLogger(__name__)

BACKEND = "forebay.kernels.plugins.vllm_backend.ForebayAttentionBackend"


def register() -> None:
    """Offer our backend under the name CUSTOM; may be called many times, and yields to others."""
    from vllm.v1.attention.backends.registry import (  # noqa: PLC0415 - only inside vLLM
        AttentionBackendEnum,
        register_backend,
    )

    custom = AttentionBackendEnum.CUSTOM
    if custom.is_overridden() and custom.get_path() != BACKEND:
        logger.warning("attention backend CUSTOM is taken by %s, left alone", custom.get_path())
        return
    register_backend(custom, BACKEND)
