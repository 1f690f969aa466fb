"""The studio's server: what it serves, what it answers about plans, and what it refuses."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from centaurus import studio as plans
from centaurus.planner import CPU
from centaurus.studio import (
    HEADERS,
    HOST,
    POLICY,
    Page,
    QueryError,
    Server,
    answer_plan,
    answer_row,
    site,
    write_site,
)

PAGES = ("index.html", "words.html", "plans.html", "networks.html")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(port=0) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def get(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=30)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    return response, response.read()


@pytest.mark.parametrize("page", ["", *PAGES])
def test_every_page_is_served_with_a_strict_policy(server: Server, page: str) -> None:
    response, body = get(server, f"/{page}")
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
    assert all(response.headers[name] == value for name, value in HEADERS.items())
    assert POLICY in body.decode()  # for hosts that send no headers


def test_pages_hold_no_inline_script_or_style_and_name_no_other_host() -> None:
    for path, page in site(live=True).items():
        if path.endswith((".html", ".css", ".js", ".svg")):
            text = page.read().decode().replace("http://www.w3.org/2000/svg", "")
            assert "http://" not in text.replace("https://", ""), path
            assert "innerHTML" not in text, path
            assert "outerHTML" not in text, path
            assert "eval(" not in text, path
        if path.endswith(".html"):
            assert "<style" not in text, path
            assert " style=" not in text, path
            assert " on" not in {word[:3] for word in text.split("<") if "=" in word and " on" in word[:3]}, path
            assert text.count("<script") == text.count("<script src=") + text.count('<script type="module" src='), path


@pytest.mark.parametrize(
    "path",
    ["/../pyproject.toml", "/%2e%2e/%2e%2e/etc/passwd", "/js/../../server.py", "/server.py", "/js", "/%00", "//etc"],
)
def test_nothing_but_the_site_is_served(server: Server, path: str) -> None:
    response, body = get(server, path)
    assert response.status == 404
    assert json.loads(body) == {"error": "there is no such page"}


def test_another_hosts_name_is_refused(server: Server) -> None:
    """A page elsewhere whose name resolves to 127.0.0.1 must not read answers (DNS rebinding)."""
    response, _ = get(server, "/", Host="studio.example:80")
    assert response.status == 403


def test_other_methods_and_endless_requests_are_refused(server: Server) -> None:
    assert get(server, "/", "POST")[0].status == 501
    assert get(server, "/api/plan?equation=" + "x" * 5000)[0].status == 414
    response, body = get(server, "/", "HEAD")
    assert (response.status, body) == (200, b"")


def test_the_server_is_on_the_loopback_interface(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_text_is_compressed_where_the_browser_takes_it(server: Server) -> None:
    plain = get(server, "/style.css")[1]
    response, small = get(server, "/style.css", **{"Accept-Encoding": "gzip, br"})
    assert response.headers["Content-Encoding"] == "gzip"
    assert len(small) < len(plain) / 2


def test_a_plan_is_answered(server: Server) -> None:
    response, body = get(server, "/api/plan?equation=pointwise&b=8&t=1024&i=16&j=16&n=8")
    assert response.status == 200
    answer = json.loads(body)
    assert answer["equation"] == "u_bit B_ni K_nt C_jn -> y_bjt"
    assert answer["sizes"] == {"b": 8, "t": 1024, "i": 16, "j": 16, "n": 8}
    assert answer["plan"]["seconds"] == pytest.approx(
        sum(step["forward_seconds"] + step["backward_seconds"] for step in answer["plan"]["steps"])
    )
    assert all(other["seconds"] >= answer["plan"]["seconds"] for other in answer["runners_up"])
    assert set(answer["named"]) == {"natural", "paper", "full-kernel"}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("equation=nothing", "is not a topology"),
        ("equation=pointwise&b=0", "the size of 'b' is a whole number from 1"),
        ("equation=pointwise&b=1e3", "the size of 'b'"),
        ("equation=pointwise&n=99999999999999999999", "the size of 'n'"),
        ("equation=u_bit+A_ni+B_ni+C_ni+D_ni+E_ni+F_ni+K_nt+-%3E+y_bnt", "at most 6 operands"),
        ("equation=%3Cimg+src%3Dx%3E-%3E", "<img src=x>->"),
        ("equation=" + "u" * 200, "at most 120 characters"),
    ],
)
def test_a_bad_query_is_answered_with_a_message(server: Server, query: str, message: str) -> None:
    response, body = get(server, f"/api/plan?{query}")
    assert response.status == 400
    assert message in json.loads(body)["error"]
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_a_row_of_a_map_has_the_plans_of_its_cells() -> None:
    query = {"equation": "pointwise", "b": "2", "t": "256", "across": "n", "values": "4,64"}
    cells = answer_row(query, CPU)["cells"]
    for value, cell in zip((4, 64), cells, strict=True):
        answer = answer_plan(query | {"n": str(value)}, CPU)
        assert cell["plan"] == answer["plan"]["summary"]
        assert cell["rule"] == answer["rule"]
        assert cell["paper"] >= 1.0
    with pytest.raises(QueryError, match="across"):
        answer_row(query | {"across": "m"}, CPU)
    with pytest.raises(QueryError, match="1 to 16 values"):
        answer_row(query | {"values": ",".join(["4"] * 17)}, CPU)


def test_the_papers_rule_is_named_where_it_switches() -> None:
    """Listing 1: few states project first, many states and few channels contract the kernel first."""
    few = {"equation": "pointwise", "b": "64", "t": "1024", "i": "64", "j": "64", "n": "4"}
    many = {"equation": "pointwise", "b": "64", "t": "1024", "i": "4", "j": "4", "n": "256"}
    assert answer_plan(few, CPU)["rule"] == "natural"
    assert answer_plan(many, CPU)["rule"] == "full-kernel"


def test_the_static_site_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "GRID", {"b": (1,), "t": (1_024,), "i": (8,), "n": (4,)})
    folder = tmp_path / "site"
    written = write_site(folder)
    names = {path.relative_to(folder).as_posix() for path in written}
    assert {*PAGES, "style.css", "networks.json", "plans.json", "models.json", "demo.flac"} <= names
    assert json.loads((folder / "models.json").read_text())["live"] is False
    data = json.loads((folder / "plans.json").read_text())
    plan = data["plans"]["bottleneck/1/1024/8/4"]["plan"]
    sizes = {"b": "1", "t": "1024", "i": "8", "j": "8", "n": "4"}
    answer = answer_plan({"equation": "bottleneck"} | sizes, CPU)
    assert data["summaries"][plan["summary"]] == answer["plan"]["summary"]
    with pytest.raises(FileExistsError, match="not an empty folder"):
        write_site(folder)


def test_every_model_with_a_module_is_listed() -> None:
    pages = site(live=True)
    modules = {path.removeprefix("models/").removesuffix(".wasm") for path in pages if path.endswith(".wasm")}
    listed = json.loads(pages["models.json"].read())["models"]
    assert {model["name"] for model in listed} == modules
    assert all(isinstance(page, Page) and page.kind for page in pages.values())
