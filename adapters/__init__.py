"""Answer the question: how does one engine speak.

`base` is the contract; `vllm`, `sglang`, `trtllm`, `llamacpp`, `openai` and `sim` implement it, a
file each: probe, load reader, request translation, abort, error reading. `connections` is the
client side of HTTP/1.1. May import scheduler, policies and prefixcache.
"""
