"""`forebay ab`: against an admin port, and the page of a report."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from forebay.gateway.cli import main
from forebay.gateway.commands.ab import _copies
from forebay.gateway.experiment_report import (
    ArmReport,
    ClassReport,
    EffectReport,
    EndpointLoad,
    Report,
    Spread,
    TrafficReport,
)
from forebay.gateway.experiments.report_page import page
from forebay.policies.experiments.answers import ShadowTally
from forebay.policies.experiments.ramp import Decision

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def arm(name: str, role: str, **rest: Any) -> ArmReport:
    spread = Spread(40, 0.2, 0.15, 0.9, [0.1 + 0.01 * n for n in range(99)])
    counts = dict.fromkeys(("requests", "errors", "answered", "empty", "truncated"), 3)
    tokens = dict.fromkeys(("prompt_tokens", "cached_tokens", "output_tokens"), 9)
    spreads: dict[str, Spread] = dict.fromkeys(("ttft", "tpot", "e2e", "queue", "length"), spread)
    plain: dict[str, Any] = {
        "classes": [ClassReport(sla="fast", goodput=0.75, spreads=spreads, **counts, **tokens)],
        "share": 0.5,
        "requests": 50,
        "errors": 5,
        "refused": 0,
        "left": 1,
        "answered": 44,
        "empty": 0,
        "truncated": 4,
        "prompt_tokens": 400,
        "cached_tokens": 100,
        "output_tokens": 900,
        "goodput": None,
        "cost_per_1k": 0.002,
        "finish_reasons": {"stop": 40, "length": 4},
        "spreads": spreads,
        "endpoints": [EndpointLoad("e0", True, 3, 8)],
    }
    return ArmReport(name=name, role=role, **{**plain, **rest})


def effect(measure: str, **rest: Any) -> EffectReport:
    plain: dict[str, Any] = {
        "arm": "new",
        "measure": measure,
        "says": f"{measure}, mean",
        "where": "all",
        "kind": "mean",
        "candidate": 0.2,
        "control": 0.1,
        "estimate": 2.0,
        "low": 1.5,
        "high": 2.6,
        "detectable": 0.1,
        "margin": 0.05,
        "says_now": "worse",
    }
    return EffectReport(**{**plain, **rest})


REPORT = Report(
    name="trial",
    pool="p",
    phase="rolled_back",
    stage=0,
    stages=[0.05, 0.5],
    since=1_790_000_000.0,
    primary="ttft",
    promote="better",
    alpha=0.05,
    same_mix=False,
    arms=[arm("old", "control"), arm("new", "candidate", share=0.0)],
    effects=[
        effect("ttft"),
        effect("ttft_p99", kind="quantile", high=None, detectable=None, says_now="unsure"),
        effect("errors", kind="share", low=0.02, high=0.3, estimate=0.1),
        effect("ttft", where="fast, to-512"),
    ],
    traffic=[TrafficReport("new", "fast", "to-512", 50)],
    decisions=[Decision(at=1_790_000_100.0, what="roll back", why="ttft: worse", arm="new")],
    shadow={
        "arm": "new",
        "share": 0.1,
        "buckets": {"to-512": ShadowTally(copies=4, exact=3, same_finish=4)},
        "pairs": [{"first": "<script>alert(1)</script>", "second": "b"}],
    },
)


class Admin:
    """An admin port that knows one experiment, and keeps what it was asked."""

    def __init__(self) -> None:
        asked = self.asked = list[tuple[str, str, str]]()

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                asked.append((self.command, self.path, self.headers.get("authorization", "")))
                path = self.path.partition("?")[0].removeprefix("/admin/v1/experiments")
                found: object = {"experiments": [REPORT]} if not path else REPORT
                status = 200
                if path.startswith("/nosuch"):
                    status, found = 404, {"error": {"message": "there is no such experiment"}}
                body = msgspec.json.encode(found)
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = answer  # noqa: N815 - as http.server calls them

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its signature
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def admin() -> Iterator[Admin]:
    made = Admin()
    yield made
    made.close()


def test_status_tells_arms_and_decisions(admin: Admin, capsys: pytest.CaptureFixture[str]):
    assert main(["ab", "status", "--admin", admin.url]) == 0
    told = capsys.readouterr().out
    assert told.startswith("trial (pool p): rolled_back, stage 1 of 2\n")
    assert "  new  candidate  0%     50        10.0%   150 ms    900 ms" in told
    assert "forebay: roll back new: ttft: worse" in told
    assert admin.asked == [("GET", "/admin/v1/experiments", "")]


def test_json_is_the_whole_report(admin: Admin, capsys: pytest.CaptureFixture[str]):
    assert main(["ab", "report", "trial", "--json", "--admin", admin.url]) == 0
    assert json.loads(capsys.readouterr().out) == msgspec.to_builtins(REPORT, str_keys=True)
    assert main(["ab", "status", "trial", "--json", "--admin", admin.url]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["experiments"]


def test_a_report_for_people_has_effects_and_warns_of_other_mixes(
    admin: Admin, capsys: pytest.CaptureFixture[str]
):
    assert main(["ab", "report", "trial", "--admin", admin.url]) == 0
    told = capsys.readouterr().out
    assert "x1.500 to x2.600" in told
    assert "x1.500 to none" in told
    assert "+2.00% to +30.00%" in told
    assert "the arms' mixes differ" in told


@pytest.mark.parametrize("what", ["promote", "pause", "resume", "rollback", "restart"])
def test_each_change_is_one_post_with_the_admin_key(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, what: str
):
    monkeypatch.setenv("FOREBAY_ADMIN_KEY", "secret")
    assert main(["ab", what, "trial", "--admin", admin.url]) == 0
    assert admin.asked == [("POST", f"/admin/v1/experiments/trial/{what}", "Bearer secret")]


def test_an_arm_can_be_named(admin: Admin):
    assert main(["ab", "rollback", "trial", "--arm", "new", "--admin", admin.url]) == 0
    assert admin.asked[0][1] == "/admin/v1/experiments/trial/rollback?arm=new"


def test_errors_say_what_and_which(admin: Admin, capsys: pytest.CaptureFixture[str]):
    assert main(["ab", "status", "nosuch", "--admin", admin.url]) == 1
    assert capsys.readouterr().err == (
        f"forebay: {admin.url}: answered 404: there is no such experiment\n"
    )
    assert main(["ab", "status", "--admin", "http://127.0.0.1:1"]) == 1
    assert "cannot be asked" in capsys.readouterr().err
    assert main(["ab", "nothing"]) == 2


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing(
    admin: Admin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "report.html"
    assert main(["ab", "report", "trial", "--html", str(file), "--admin", admin.url]) == 0
    text = file.read_text()
    assert f"wrote {file}" in capsys.readouterr().err
    for foreign in ("<script", "<link", "<img", "src=", "href=", "http:", "https:", "@import"):
        assert foreign not in text, foreign
    assert "&lt;script&gt;alert(1)" in text
    assert text.count("<svg") == 5
    for said in (
        "roll back",
        "no bound",
        "x1.500 to x2.600",
        "to-512",
        "e0 3/8",
        "Copies to new",
        "75.0%",
    ):
        assert said in text, said


def test_a_report_without_any_request_is_a_page():
    empty = msgspec.structs.replace(
        REPORT, arms=[], effects=[], traffic=[], decisions=[], shadow=None
    )
    text = page(msgspec.to_builtins(empty, str_keys=True))
    assert "<svg" not in text
    assert "None so far." in text


def test_a_report_for_people_says_how_copies_compared():
    tally = {"copies": 20, "exact": 5, "failed": 1, "dropped": 2}
    named, row = _copies({"arm": "new", "buckets": {"to-512": tally}})
    assert named.split() == [
        "copies",
        "to",
        "new,",
        "prompt",
        "tokens",
        "compared",
        "equal",
        "failed",
        "dropped",
    ]
    assert row.split() == ["to-512", "20", "25%", "1", "2"]
    assert _copies(None) == []


def test_a_name_is_one_part_of_the_path_whatever_is_in_it(admin: Admin):
    assert main(["ab", "report", "a/b c", "--admin", admin.url]) == 0
    assert admin.asked == [("GET", "/admin/v1/experiments/a%2Fb%20c", "")]
