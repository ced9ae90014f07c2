"""Pluggable middleware in front of LLM engines: gateway, scheduler, prefix router, kernels."""

__version__ = "0.1.0"
