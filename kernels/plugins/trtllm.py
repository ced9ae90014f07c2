"""TensorRT-LLM: a module for `trtllm-serve --custom_module_dirs DIR`.

That flag imports what lies in DIR before the model is built, and is all the engine offers here: its
attention backends are a fixed list (`get_attention_backend` answers an unknown name with the stock
one, silently), and there are no entry points. So this module registers our ops with torch, where a
model definition of your own can call `torch.ops.forebay.paged_decode`, and says so; it does not and
cannot replace the engine's attention. Put into DIR a file with this one line:

    from forebay.kernels.plugins import trtllm; trtllm.load()
"""

import logging
from importlib import import_module

__all__ = ["load"]

logger = logging.getLogger(__name__)


def load() -> bool:
    """Register `torch.ops.forebay.*`; return whether that was possible in this process."""
    try:
        import_module("forebay.kernels.ops")
    except ImportError as problem:
        logger.warning("forebay ops are not available: %s", problem)
        return False
    logger.info("forebay ops are registered; TensorRT-LLM's own attention is unchanged")
    return True
