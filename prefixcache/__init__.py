"""Prefix cache: who holds which prefix?

Block hashing, the index of holders, eviction, and the readers of engine KV events. The cores are
pure; I/O sits in `events` and `shared`. Imports nothing else of forebay.
"""
