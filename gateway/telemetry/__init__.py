"""Telemetry: metrics, traces and logs, batched so that the event loop hardly notices.

Never a prompt, an answer or a key; label values come from the configuration only.
"""
