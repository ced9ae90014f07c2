"""Kernels: how fast can the engine be?

Triton ops with plain torch references beside them, plugins that bring them into the engines, and
speculative drafters. Imports nothing outside the standard library, torch and triton, so that the
wheel can be installed into an engine's environment with `pip install --no-deps forebay`.
"""
