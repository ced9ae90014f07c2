"""Ways into the engines: each module here is a no-op until the engine's own flag names it.

`vllm` and `sglang` hold the functions their entry points call, `trtllm` what TensorRT-LLM's
`--custom_module_dirs` can carry. They import nothing of an engine until called.
"""

__all__: list[str] = []
