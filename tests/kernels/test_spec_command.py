# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: ANN001, ANN002, ANN202
# (skip before importing what needs torch, whose types are unknown where this is checked)
"""`forebay spec`: stores, advice, flags."""

import json
import random
import struct
import threading
import time
from array import array
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("torch", reason="kernels need torch")

from forebay.kernels.speculative.command import main
from forebay.kernels.speculative.corpus import Text, day_of
from forebay.kernels.speculative.doctor import advise, decide, examine
from forebay.kernels.speculative.profiles import ENGINES, METHODS, flags

TODAY = int(time.time() // 86_400)


def write_texts(path, texts):
    path.write_text("".join(json.dumps(each) + "\n" for each in texts))
    return str(path)


def texts_of(count, *, repeat=True, tenants=("a", "b"), length=80):
    rng = random.Random(0)
    base = [rng.randrange(100, 900) for _ in range(length)]
    for n in range(count):
        own = base[n % 20 :] if repeat else [rng.randrange(1000) for _ in range(length)]
        prompt = [rng.randrange(1000) for _ in range(20)]
        yield {
            "tokens": prompt + own + [rng.randrange(1000) for _ in range(10)],
            "answer_from": 20,
            "day": TODAY - n,
            "tenant": tenants[n % len(tenants)],
        }


def run(capsys, *words):
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_tenants_answers_are_not_mixed_unless_it_is_said(tmp_path, capsys):
    data = write_texts(tmp_path / "t.jsonl", texts_of(10))
    assert main(["store", "build", str(tmp_path / "a.store"), "--data", data]) == 1
    assert "several tenants (a, b)" in capsys.readouterr().err
    assert not (tmp_path / "a.store").exists()
    told = run(capsys, "store", "build", tmp_path / "each", "--data", data, "--by-tenant")
    assert [each["kept"] for each in told["stores"]] == [5, 5]
    assert sorted(path.name for path in (tmp_path / "each").iterdir()) == ["a.store", "b.store"]
    told = run(capsys, "store", "build", tmp_path / "a.store", "--data", data, "--tenant", "a")
    assert told["stores"][0]["kept"] == 5
    told = run(capsys, "store", "build", tmp_path / "s.store", "--data", data, "--shared")
    assert told["stores"][0]["kept"] == 10


def test_a_misspelt_tenant_empties_no_store(tmp_path, capsys):
    data = write_texts(tmp_path / "t.jsonl", texts_of(10))
    words = ("store", "build", tmp_path / "a.store", "--data", data, "--tenant")
    assert main([*map(str, words), "a"]) == 0
    assert capsys.readouterr().out == (
        f"stores:\n  store {tmp_path}/a.store, tokens 436, kept 5, short 0, loops 0, twice 0,"
        " old 0, over 0\n"
    )
    before = (tmp_path / "a.store").read_bytes()
    said = failed(capsys, *words, "aa")
    assert said == "forebay: no text is of tenant 'aa'; the data has 'a', 'b'"
    assert (tmp_path / "a.store").read_bytes() == before


def test_a_tenant_cannot_name_a_file_elsewhere(tmp_path, capsys):
    data = write_texts(tmp_path / "t.jsonl", texts_of(2, tenants=("../x",)))
    assert main(["store", "build", str(tmp_path / "f"), "--data", data, "--by-tenant"]) == 1
    assert "cannot name a file" in capsys.readouterr().err


def test_a_store_takes_each_answer_once_and_drops_what_is_old_short_or_a_circle(tmp_path, capsys):
    texts = list(texts_of(4, tenants=("a",)))
    texts.append({**texts[0], "day": TODAY - 50})
    texts.append({"tokens": list(range(15)), "day": TODAY, "tenant": "a"})
    texts.append({"tokens": [5] * 100, "day": TODAY, "tenant": "a"})
    store = tmp_path / "a.store"
    told = run(
        capsys, "store", "build", store, "--data", write_texts(tmp_path / "t.jsonl", texts),
        "--max-age", 40,
    )  # fmt: skip
    assert told["stores"][0] == {
        "store": str(store), "tokens": told["stores"][0]["tokens"],
        "kept": 4, "short": 1, "loops": 1, "twice": 0, "old": 1, "over": 0,
    }  # fmt: skip
    more = write_texts(
        tmp_path / "m.jsonl", [*texts[:1], *texts_of(1, repeat=False, tenants=("a",))]
    )
    told = run(capsys, "store", "add", store, "--data", more)
    assert (told["stores"][0]["kept"], told["stores"][0]["twice"]) == (5, 1)
    told = run(capsys, "store", "prune", store, "--max-tokens", 200)
    assert (told["kept"], told["over"]) == (2, 3)
    stats = run(capsys, "store", "stats", store)
    assert (stats["answers"], stats["bytes_per_token"] < 12) == (2, True)


def test_llama_cpps_lookup_cache_holds_what_follows_each_pair(tmp_path, capsys):
    data = write_texts(tmp_path / "t.jsonl", [{"tokens": [1, 2, 3] * 3 + list(range(10, 30))}])
    store, out = tmp_path / "a.store", tmp_path / "a.bin"
    run(capsys, "store", "build", store, "--data", data)
    pairs = run(capsys, "store", "export", store, out, "--engine", "llamacpp")["pairs"]
    raw, at, found = out.read_bytes(), 0, {}
    while at < len(raw):
        *gram, count = struct.unpack_from("<5i", raw, at)
        at += 20
        following = [struct.unpack_from("<2i", raw, at + 8 * n) for n in range(count)]
        at += 8 * count
        found[tuple(gram)] = following
    assert len(found) == pairs
    assert found[1, 2, -1, -1] == [(3, 3)]
    assert found[2, 3, -1, -1] == [(1, 2), (10, 1)]


def test_the_doctor_goes_by_what_drafts_come_to():
    texts = [Text(array("I", t["tokens"]), 20, t["day"]) for t in texts_of(40)]
    found = examine(texts, store=None)
    assert found.store is not None
    assert found.store > 2 > found.lookup
    assert advise(found)[0].startswith("rest: ")
    short = [Text(text.tokens[:40], 20, text.day) for text in texts]
    assert advise(examine(short, store=None))[0].startswith("none: ")
    fresh = [Text(array("I", t["tokens"]), 20, t["day"]) for t in texts_of(20, repeat=False)]
    assert advise(examine(fresh, store=None))[0].startswith("lookahead or none: ")
    loops = [Text(array("I", [1, 2, 3, 4, 5] * 40), 20)] * 4
    assert advise(examine(loops, store=None))[-1].startswith("suffix: ")


def test_the_doctors_table_has_every_way_in_the_order_of_its_cost(tmp_path, capsys):
    data = tmp_path / "a.jsonl"
    data.write_text("".join(json.dumps(each) + "\n" for each in texts_of(40)))
    told = run(capsys, "doctor", "--data", data, "--engine", "vllm-0.33", "--head", "h")
    table = {row["way"]: row for row in told["ways"]}
    assert list(table) == ["lookahead", "suffix", "rest", "medusa", "eagle3"]
    assert [way for way, row in table.items() if row["use"]] == ["rest", "eagle3"]
    assert (table["rest"]["seen"], table["suffix"]["seen"]) == (told["store"], told["lookup"])
    assert table["medusa"]["why"] == "Medusa was taken out after 0.26"
    short = [Text(array("I", t["tokens"][:40]), 20, t["day"]) for t in texts_of(40)]
    assert not any(row.use for row in decide(examine(short, store=None), has_head=True))


def test_each_engine_and_method_has_flags_or_a_plain_no(capsys):
    told = run(capsys, "profile", "--head", "/heads/e3", "--tokens", 5)
    assert len(told) == len(ENGINES) * len(METHODS)
    assert told["vllm-0.33 medusa"] == "Medusa was taken out after 0.26"
    assert told["llamacpp eagle"] == "not in llamacpp"
    said = told["vllm-0.26 eagle3"]
    config = json.loads(said.removeprefix("--speculative-config '").removesuffix("'"))
    assert config == {"method": "eagle3", "model": "/heads/e3", "num_speculative_tokens": 5}
    assert "--speculative-num-draft-tokens 6" in told["sglang-0.5 eagle3"]
    # Its tokens count the last one that is known; it refuses a corpus without a budget below them.
    assert "--speculative-num-draft-tokens 6" in told["sglang-0.5 lookup"]
    assert told["sglang-0.5 rest"].endswith("--speculative-ngram-external-sam-budget 5")
    assert str(flags("vllm-0.26", "rest", store="a.store", tokens=8)).endswith(
        """--additional-config '{"forebay": {"store": "a.store"}}'"""
    )


def test_a_head_is_evaluated_against_plain_output_and_errors_say_what_is_wrong(tmp_path, capsys):
    assert main(["eval", "--target", str(tmp_path), "--head", "x", "--data", "y"]) == 1
    assert "has no config.json" in capsys.readouterr().err
    assert main(["store", "stats", str(tmp_path / "none")]) == 1
    with pytest.raises(SystemExit) as leaving:
        main(["store"])
    assert leaving.value.code == 2


def test_a_day_is_a_date_or_a_number():
    assert (day_of("1970-01-02"), day_of("2026-11-29"), day_of(20786)) == (1, 20786, 20786)
    for wrong in ("yesterday", -1, None, 1.5, [1]):
        with pytest.raises(ValueError, match="'day' must be"):
            day_of(wrong)


def test_tokens_take_the_place_of_nothing_before_they_are_whole(tmp_path, capsys):
    text, old = tmp_path / "text.jsonl", tmp_path / "old.jsonl"
    text.write_text('{"prompt": "a", "answer": "b", "day": "2026-11-29"}\n')
    old.write_text("kept")
    nobody = ["--url", "http://127.0.0.1:9"]
    assert main(["tokens", str(text), str(old), *nobody]) != 0
    assert old.read_text() == "kept"
    assert main(["tokens", str(text), str(text), *nobody]) != 0
    assert "is the text itself" in capsys.readouterr().err
    assert text.read_text().startswith('{"prompt"')


def test_a_draft_has_a_token_at_least(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["profile", "--tokens", "0"])
    assert "at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--min-tokens", "-3"], "'-3' is no whole number of at least 1"),
        (["--max-age", "-1"], "'-1' is no whole number of at least 0"),
        (["--max-tokens", "many"], "'many' is no whole number of at least 0"),
    ],
)
def test_sizes_and_ages_that_mean_nothing_are_wrongly_called(words, why, tmp_path, capsys):
    data = write_texts(tmp_path / "t.jsonl", texts_of(3, tenants=("a",)))
    with pytest.raises(SystemExit) as ended:
        main(["store", "build", str(tmp_path / "a.store"), "--data", data, *words])
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


def failed(capsys, *words):
    assert main([*map(str, words)]) == 1
    return capsys.readouterr().err.splitlines()[-1]


def test_texts_that_cannot_be_are_named_and_leave_no_store(tmp_path, capsys):
    store = tmp_path / "a.store"
    for text, why in (
        ({"tokens": [1, 2], "answer_from": 3}, "'answer_from' must be 0 to 2, the tokens, not 3"),
        ({"tokens": [1, 2], "answer_from": -1}, "'answer_from' must be 0 to 2, the tokens, not -1"),
        ({"tokens": [2**32 - 1]}, f"{2**32 - 1} is no token, it parts texts"),
        ({"tokens": [1], "day": int(time.time())}, "'day' counts days since 1970, not seconds"),
    ):
        data = write_texts(tmp_path / "t.jsonl", [text])
        assert why in failed(capsys, "store", "build", store, "--data", data)
    data = write_texts(tmp_path / "t.jsonl", texts_of(3, tenants=("a",)))
    words = ("--data", data, "--min-tokens", 20, "--max-tokens", 10)
    said = failed(capsys, "store", "build", store, *words)
    assert said.endswith("--max-tokens 10 holds no answer of --min-tokens 20: give more, or 0")
    assert not store.exists()


def test_the_systems_errors_say_which_path_and_what_to_do(tmp_path, capsys):
    gone = tmp_path / "gone.jsonl"
    assert failed(capsys, "doctor", "--data", gone) == (
        f"forebay: {gone}: no such file or directory; give the path of something that is there"
    )
    assert failed(capsys, "doctor", "--data", tmp_path) == (
        f"forebay: {tmp_path}: is a directory; it is a folder, give a file"
    )
    data = write_texts(tmp_path / "t.jsonl", texts_of(3, tenants=("a",)))
    said = failed(capsys, "store", "build", tmp_path / "no" / "a.store", "--data", data)
    assert said == (
        f"forebay: {tmp_path}/no/a.store: no such file or directory;"
        " give the path of something that is there"
    )


def test_an_engine_that_answers_something_else_is_named(tmp_path, capsys):
    class Other(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"model": "x"}')

        def log_message(self, *_):
            pass

    text = write_texts(tmp_path / "t.jsonl", [{"prompt": "a", "answer": "b"}])
    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        said = failed(capsys, "tokens", text, tmp_path / "out.jsonl", "--url", url)
        server.shutdown()
    assert said == (f"forebay: {url}/tokenize answered without 'tokens', so it is no such engine")


def test_an_engine_that_refuses_or_is_not_there_is_told_with_its_reason(tmp_path, capsys):
    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(404)
            self.end_headers()
            self.wfile.write(b'{"error": {"message": "there is no model \'lama\'"}}')

        def log_message(self, *_):
            pass

    text = write_texts(tmp_path / "t.jsonl", [{"prompt": "a", "answer": "b"}])
    words = ("tokens", text, tmp_path / "out.jsonl", "--url")
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        said = [failed(capsys, *words, each) for each in (url, url + "/v1")]
        server.shutdown()
    assert said == [
        f"forebay: {url}/tokenize answered 404: there is no model 'lama'",
        f"forebay: {url}/v1/tokenize answered 404: give the engine's address without /v1",
    ]
    assert failed(capsys, *words, url) == (
        f"forebay: {url}/tokenize: connection refused; is the engine running there?"
    )


def test_a_device_that_cannot_be_used_is_refused_before_the_work(tmp_path, capsys):
    words = ("--target", tmp_path, "--data", tmp_path / "none", "--device", "abacus")
    told = "forebay: --device abacus cannot be used here: "
    assert failed(capsys, "train", "--out", tmp_path / "o", *words).startswith(told)
    assert failed(capsys, "eval", "--head", tmp_path, *words).startswith(told)
