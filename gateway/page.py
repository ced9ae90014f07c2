"""The pages that the admin app serves: one file each, nothing loaded from elsewhere."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("page.html").read_text("utf-8")


def _only(tag: str) -> str:
    found = re.search(f"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


_STYLE = _only("style")
HEADERS = {
    # Nothing runs, loads or frames but what is in the file.
    "content-security-policy": (
        f"default-src 'none'; style-src {_digest(_STYLE)}; script-src {_digest(_only('script'))}; "
        "connect-src 'self'; img-src data:; form-action 'none'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def describe(openapi: dict[str, Any]) -> str:
    """Return an OpenAPI description as a page to read."""
    rows = "".join(
        _operation(path, method, operation)
        for path, operations in openapi["paths"].items()
        for method, operation in operations.items()
    )
    schemas = openapi.get("components", {}).get("schemas", {})
    shapes = "".join(_shape(name, schema) for name, schema in schemas.items())
    title = escape(f"{openapi['info']['title']} {openapi['info']['version']}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<style>{_STYLE}</style><body><main><h1 class="page">{title}</h1>'
        '<p>For tools: <a href="openapi.json">openapi.json</a>. '
        '<a href="./">Back to the live page</a></p>'
        f'{rows}<h2 class="page">Shapes</h2>{shapes}</main></body></html>'
    )


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    text = escape(operation.get("description", operation.get("summary", "")))
    parameters = ", ".join(_parameter(p) for p in operation.get("parameters", []))
    note = f"<p>Parameters: {parameters}</p>" if parameters else ""
    title = f"<h2>{escape(method.upper())} {escape(path)}</h2>"
    return f'<section class="pool">{title}<p>{text}</p>{note}{_answer(operation)}</section>'


def _parameter(said: dict[str, Any]) -> str:
    values = said.get("schema", {}).get("enum", ())
    about = " or ".join(values) or said.get("description", "")
    return escape(said["name"] + (f" ({about})" if about else ""))


def _answer(operation: dict[str, Any]) -> str:
    content = operation.get("responses", {}).get("200", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    name = re.search(r'"#/components/schemas/(\w+)"', json.dumps(schema))
    if name is None:
        return ""
    kind = escape(_kind(schema)).replace(name[1], f'<a href="#{name[1]}">{name[1]}</a>')
    return f"<p>Answer: {kind}</p>"


def _shape(name: str, schema: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(field)}</td><td>{escape(_kind(said))}</td>"
        f"<td>{escape(said.get('description', ''))}</td></tr>"
        for field, said in schema.get("properties", {}).items()
    )
    text = escape(schema.get("description", ""))
    title = f'<h2 id="{escape(name)}">{escape(name)}</h2>'
    return f'<section class="pool">{title}<p>{text}</p><table>{rows}</table></section>'


def _kind(said: dict[str, Any]) -> str:
    if "anyOf" in said:
        return " or ".join(_kind(one) for one in said["anyOf"])
    if "$ref" in said:
        return str(said["$ref"]).rsplit("/", 1)[-1]
    if said.get("type") == "array":
        return f"list of {_kind(said.get('items', {}))}"
    return str(said.get("type", "any"))
