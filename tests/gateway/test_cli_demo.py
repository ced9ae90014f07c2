"""The demo as a process: what its banner says to paste is pasted."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def banner() -> Iterator[str]:
    demo = subprocess.Popen(
        [sys.executable, "-m", "forebay", "demo", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert demo.stdout is not None
    lines: list[str] = []
    for line in demo.stdout:
        lines.append(line)
        if "Watch it" in line:
            break
    yield "".join(lines)
    demo.send_signal(signal.SIGINT)
    demo.stdout.close()
    assert demo.wait(20) == 0


def snippet(banner: str, start: str) -> str:
    text = banner[banner.index(f"  {start}") :].partition("\n\n")[0]
    return "\n".join(line[2:] for line in text.splitlines())


def test_the_live_page_is_where_the_banner_says(banner: str):
    import urllib.request

    (page,) = re.findall(r"Watch it: (\S+)", banner)
    with urllib.request.urlopen(page, timeout=60) as answer:
        assert b"<title>" in answer.read()


@pytest.mark.parametrize("start", ["from openai", "from anthropic"])
def test_a_pasted_sdk_snippet_prints_an_answer(banner: str, start: str):
    told = subprocess.run(
        [sys.executable, "-c", snippet(banner, start)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert told.stdout.strip()


def test_the_pasted_curl_line_gets_an_answer(banner: str):
    import json
    import shlex
    import urllib.request

    words = shlex.split(snippet(banner, "curl").replace("\\\n", " "))
    assert words[0::2] == ["curl", "-H", "-d"]
    name, _, value = words[3].partition(": ")
    request = urllib.request.Request(words[1], words[5].encode(), {name: value})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["choices"][0]["message"]["content"]
