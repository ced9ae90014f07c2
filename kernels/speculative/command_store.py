# ruff: noqa: T201
# (printing is what a command does)
"""`forebay spec store` and `spec tokens`: keep past answers, and make tokens of text."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import whole
from .corpus import day_of, read_texts
from .store import answers_of, clear_leftovers, identity, open_store, write_store
from .store_edit import Keep, add_to_store, answers_by_tenant, keep_answers, write_anew
from .store_export import write_corpus, write_lookup_cache

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterable, Iterator

    from .corpus import Text

__all__ = ["add"]


def add(actions: Any) -> None:
    """Declare the actions."""
    store = actions.add_parser("store", help="keep past answers for retrieval")
    verbs = store.add_subparsers(metavar="VERB", required=True)
    for name, text, run in (
        ("build", "make a store, in place of one that is there", _build),
        ("add", "add answers to a store", _add),
    ):
        verb = verbs.add_parser(name, help=text)
        verb.add_argument("store", type=Path, help="the file; with --by-tenant a folder")
        verb.add_argument(
            "--data",
            type=Path,
            nargs="+",
            required=True,
            help="tokenised texts, as `spec tokens` writes them",
        )
        verb.add_argument("--tenant", help="this tenant's answers only")
        verb.add_argument("--by-tenant", action="store_true", help="a store for each tenant")
        verb.add_argument("--shared", action="store_true", help="tenants share their answers")
        verb.add_argument("--tokenizer", default="", help="a name to tell tokens apart by")
        _keeps(verb)
        verb.set_defaults(run=run)
    prune = verbs.add_parser("prune", help="drop what is old, short, double or too much")
    prune.add_argument("store", type=Path)
    _keeps(prune)
    prune.set_defaults(run=_prune)
    stats = verbs.add_parser("stats", help="what a store holds")
    stats.add_argument("store", type=Path)
    stats.add_argument("--json", action="store_true", help="print JSON")
    stats.set_defaults(run=_stats)
    export = verbs.add_parser("export", help="write it for another engine")
    export.add_argument("store", type=Path)
    export.add_argument("out", type=Path)
    export.add_argument("--engine", choices=("sglang", "llamacpp"), required=True)
    export.add_argument("--url", help="an engine that turns tokens into text (for sglang)")
    export.add_argument("--json", action="store_true", help="print JSON")
    export.set_defaults(run=_export)
    tokens = actions.add_parser("tokens", help="make tokens of JSON lines of text, by an engine")
    tokens.add_argument("text", type=Path, help='lines {"prompt", "answer", "day", "tenant"}')
    tokens.add_argument("out", type=Path)
    tokens.add_argument("--url", required=True, help="an engine with /tokenize")
    tokens.add_argument("--model", help="its model, where it asks")
    tokens.add_argument("--json", action="store_true", help="print JSON")
    tokens.set_defaults(run=_tokens)


def _keeps(verb: ArgumentParser) -> None:
    verb.add_argument(
        "--min-tokens", type=whole(1), default=16, help="shortest answer (%(default)s)"
    )
    verb.add_argument(
        "--max-tokens", type=whole(0), default=0, help="of the whole store; 0: no limit"
    )
    verb.add_argument("--max-age", type=whole(0), default=0, help="days; 0: no limit")
    verb.add_argument("--json", action="store_true", help="print JSON")


def _keep(arguments: Namespace) -> Keep:
    shortest, most = arguments.min_tokens, arguments.max_tokens
    if 0 < most < shortest:
        raise ValueError(
            f"--max-tokens {most} holds no answer of --min-tokens {shortest}: give more, or 0"
        )
    return Keep(shortest, most, arguments.max_age, _today())


def _today() -> int:
    return int(time.time() // 86_400)


def _until_today(texts: Iterable[Text]) -> Iterator[Text]:
    """Pass texts on; raises ValueError for one of a day to come, which no age would ever drop."""
    last = _today() + 1  # it is tomorrow already somewhere
    for number, text in enumerate(texts, 1):
        if text.day > last:
            raise ValueError(
                f"text {number} is of day {text.day}, which is to come (today is {last - 1}):"
                " 'day' counts days since 1970, not seconds"
            )
        yield text


def _build(arguments: Namespace) -> dict[str, Any]:
    return _each_tenant(arguments, fresh=True)


def _add(arguments: Namespace) -> dict[str, Any]:
    return _each_tenant(arguments, fresh=False)


def _each_tenant(arguments: Namespace, *, fresh: bool) -> dict[str, Any]:
    found = answers_by_tenant(
        _until_today(read_texts(arguments.data)),
        tenant=arguments.tenant,
        by_tenant=arguments.by_tenant,
        shared=arguments.shared,
    )
    told: list[dict[str, Any]] = []
    for tenant, answers in found.items():
        path = arguments.store
        if arguments.by_tenant:
            path.mkdir(parents=True, exist_ok=True)
            path /= f"{_file_name(tenant)}.store"
        _clear(path)
        print(f"sorting {sum(len(t) for _, t in answers)} tokens into {path}", file=sys.stderr)
        change = write_anew if fresh else add_to_store
        head, kept = change(path, answers, _keep(arguments), tokenizer=arguments.tokenizer)
        told.append({"store": str(path), "tokens": head.tokens, **asdict(kept)})
    return {"stores": told}


def _file_name(tenant: str) -> str:
    if not tenant:
        return "no-tenant"
    if not all(c.isalnum() or c in "-_." for c in tenant) or tenant.startswith("."):
        raise ValueError(f"the tenant {tenant!r} cannot name a file: letters, digits, - _ . only")
    return tenant


def _clear(store: Path) -> None:
    """Say in a line what killed commands have left, which is removed."""
    names = [each.name for each in clear_leftovers(store)]
    if names:
        print(f"removed what a killed command had left: {', '.join(names)}", file=sys.stderr)


def _prune(arguments: Namespace) -> dict[str, Any]:
    store = arguments.store
    _clear(store)
    instead = identity(store)
    head, _, text = open_store(store)
    kept, told = keep_answers(answers_of(head, text, store), _keep(arguments))
    after = write_store(store, kept, tokenizer=head.tokenizer, instead=instead)
    return {"tokens_before": head.tokens, "tokens": after.tokens, **asdict(told)}


def _stats(arguments: Namespace) -> dict[str, Any]:
    head, _, _ = open_store(arguments.store)
    size = arguments.store.stat().st_size
    today = _today()
    return {
        "answers": head.answers,
        "tokens": head.tokens,
        "bytes": size,
        "bytes_per_token": round(size / max(head.tokens, 1), 2),
        "tokenizer": head.tokenizer,
        "oldest_days": today - min(head.days) if head.days else None,
        "newest_days": today - max(head.days) if head.days else None,
    }


def _export(arguments: Namespace) -> dict[str, Any]:
    head, _, text = open_store(arguments.store)
    answers = answers_of(head, text, arguments.store)
    if arguments.engine == "llamacpp":
        return {"pairs": write_lookup_cache(arguments.out, answers)}
    if not arguments.url:
        raise ValueError("sglang's corpus is text: give --url of an engine with /detokenize")

    def decode(tokens: list[int]) -> str:
        return str(_ask(arguments.url, "/detokenize", {"tokens": tokens}, wanted="prompt"))

    return {"answers": write_corpus(arguments.out, answers, decode)}


def _tokens(arguments: Namespace) -> dict[str, Any]:
    if arguments.out.exists() and arguments.out.samefile(arguments.text):
        raise ValueError(f"{arguments.out} is the text itself; name another file for the tokens")
    # A file that was there stays until the new one is whole.
    part, count = arguments.out.with_name(arguments.out.name + ".part"), 0
    try:
        with arguments.text.open(encoding="utf-8") as lines, part.open("w") as out:
            for count, line in enumerate(lines, 1):
                out.write(json.dumps(_tokenised(arguments, line, count)) + "\n")
                if count % 1000 == 0:
                    print(f"{count} texts", file=sys.stderr)
        part.replace(arguments.out)
    finally:
        part.unlink(missing_ok=True)
    return {"texts": count}


def _tokenised(arguments: Namespace, line: str, number: int) -> dict[str, Any]:
    where = f"{arguments.text}:{number}"
    try:
        told = json.loads(line)
        prompt, answer = str(told["prompt"]), str(told["answer"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{where}: no JSON object with 'prompt' and 'answer'") from None
    more = {name: told[name] for name in ("tenant", "day") if name in told}
    try:
        more |= {"day": day_of(more["day"])} if "day" in more else {}
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    before, after = _tokenize(arguments, prompt), _tokenize(arguments, answer)
    return {"tokens": before + after, "answer_from": len(before), **more}


def _tokenize(arguments: Namespace, text: str) -> list[int]:
    body = {"prompt": text, "add_special_tokens": False}
    if arguments.model:
        body["model"] = arguments.model
    return [int(token) for token in _ask(arguments.url, "/tokenize", body, wanted="tokens")]


def _ask(url: str, path: str, body: dict[str, Any], *, wanted: str) -> Any:
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"'{url}' is no http:// or https:// address")
    request = urllib.request.Request(  # noqa: S310 - http or https, checked above
        url.rstrip("/") + path,
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    where = url.rstrip("/") + path
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - likewise
            return json.loads(answer.read())[wanted]
    except urllib.error.HTTPError as error:
        raise ValueError(f"{where} answered {error.code}: {_reason(url, error)}") from None
    except OSError as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        told = getattr(why, "strerror", None) or str(why) or type(why).__name__
        raise ValueError(f"{where}: {told.lower()}; is the engine running there?") from None
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{where} answered without '{wanted}', so it is no such engine") from None


def _reason(url: str, error: urllib.error.HTTPError) -> str:
    if error.code == HTTPStatus.NOT_FOUND and url.rstrip("/").endswith("/v1"):
        return "give the engine's address without /v1"
    try:
        told = json.loads(error.read())
        return str(told["error"]["message"] if "error" in told else told["message"])
    except (ValueError, KeyError, TypeError):
        return error.reason.lower()
