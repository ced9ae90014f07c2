"""`forebay demo`: the gateway before three embedded engines, without a configuration file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .arguments import port

if TYPE_CHECKING:
    from argparse import Namespace

    from forebay.gateway.config.sections import Config

    from .arguments import Commands

_BANNER = """\
forebay demo: {base}, three embedded engines, model 'sim'

Ask it:

  curl {base}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "sim", "messages": [{{"role": "user", "content": "hello"}}]}}'

From Python, with OpenAI's SDK (pip install openai):

  from openai import OpenAI
  client = OpenAI(base_url="{base}/v1", api_key="unused")
  for event in client.chat.completions.create(
      model="sim", messages=[{{"role": "user", "content": "hello"}}], stream=True
  ):
      print(event.choices[0].delta.content or "", end="", flush=True)

With Anthropic's (pip install anthropic):

  from anthropic import Anthropic
  client = Anthropic(base_url="{base}", api_key="unused")
  print(client.messages.create(
      model="sim", max_tokens=64, messages=[{{"role": "user", "content": "hello"}}]
  ).content[0].text)

Metrics: {base}/metrics   Health: {base}/readyz   Ctrl-C ends it.
"""
_PAGE = "Watch it: {page}\n"


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "demo",
        help="try it, without engines or configuration",
        description="Run the gateway before three embedded engines and print what to paste.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--port", type=port, default=8080, help="port to listen on (%(default)s); 0 picks one"
    )
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Serve the demo until told to stop."""
    from forebay.gateway.server import serve_config

    def show(base_url: str, page: str | None) -> None:
        print(banner(base_url, page), flush=True)

    return serve_config(config(host=arguments.host, port=arguments.port), banner=show)


def config(*, host: str = "127.0.0.1", port: int = 8080) -> Config:
    """Return the demo's configuration: three embedded engines in one pool.

    The live page is on the port after the gateway's, or on any where that one is to be chosen.
    """
    from forebay.gateway.config.sections import (
        Admin,
        Config,
        Drain,
        Endpoint,
        Pool,
        Server,
        SimEndpoint,
    )

    admin = Admin(port=port + 1 if 0 < port < 65535 else 0)
    endpoints = tuple(
        Endpoint(name=f"sim-{i}", engine="sim", sim=SimEndpoint(seed=i)) for i in range(3)
    )
    return Config(
        version=1,
        server=Server(host=host, port=port, drain=Drain(notice=0.0, limit=2.0), admin=admin),
        pools=(Pool(name="sim", models={"sim": "sim"}, endpoints=endpoints),),
    )


def banner(base_url: str, page: str | None = None) -> str:
    """Return the text that greets."""
    text = _BANNER.format(base=base_url.rstrip("/"))
    return text + _PAGE.format(page=page) if page else text
