"""Whatever a model, a visitor or a file says stays text: nothing runs, nothing is loaded."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page

import monolane

ORIGIN = "http://playground.localhost"  # as in conftest.py
STATIC = Path(monolane.__file__).parent / "serve" / "static"
CORPUS = [
    "<img src=x onerror=\"window.hit='img'\">",
    "<script>window.hit='script'</script>",
    "<svg onload=\"window.hit='svg'\"><script>window.hit='svg'</script></svg>",
    "<iframe srcdoc=\"<script>parent.hit='frame'</script>\"></iframe>",
    "<a href=\"javascript:window.hit='a'\">click</a>",
    "<style>body{display:none}</style><link rel=stylesheet href=//evil.example/x.css>",
    "<base href=//evil.example/><meta http-equiv=refresh content=0;url=//evil.example>",
    "<form action=//evil.example><button>go</button></form>",
    "<input autofocus onfocus=\"window.hit='focus'\">",
    "<math><mtext></p><svg><style><img src onerror=\"window.hit='math'\">",
    "[click](javascript:window.hit='link')",
    "[click](  javascript:window.hit='link')",
    "[click](data:text/html,<script>parent.hit='data'</script>)",
    "[click](https://good.example\" onclick=\"window.hit='attribute')",
    "![image](https://evil.example/pixel.png?secret)",
    "![image](x\" onerror=\"window.hit='image')",
    "<https://evil.example> <javascript:window.hit='auto'>",
    "```html\n<img src=x onerror=\"window.hit='code'\">\n```",
    "```<img/src=x/onerror=window.hit='language'>\nx\n```",
    "`<img src=x onerror=window.hit='inline'>`",
    "# <img src=x onerror=window.hit='heading'>",
    "- <img src=x onerror=window.hit='item'>\n> <img src=x onerror=window.hit='quote'>",
    "**<img src=x onerror=window.hit='bold'>** &lt;img src=x onerror=window.hit='entity'&gt;",
    "[id]: javascript:window.hit='reference'\n\n[click][id]",
    "![image][pixel]\n\n[pixel]: https://evil.example/pixel.png",
    "![image](javascript:window.hit='source') ![i](data:image/svg+xml,<svg/onload=alert(1)>)",
    "[![image](https://evil.example/pixel.png)](https://evil.example)",
    "[click](&#106;avascript:window.hit='entity') [click](java&Tab;script:window.hit='tab')",
    "[click](<javascript:window.hit='angle'>) [c](https://a.b '\" onclick=window.hit=1 ')",
    "| <img src=x onerror=window.hit='cell'> | [c](javascript:window.hit='cell') |\n|-|-|\n| `a` |",
    "- [x] <input onfocus=window.hit='task' autofocus>",
    "<video src=//evil.example/v onerror=window.hit='video'><source src=//evil.example/w></video>",
    "<div style=background:url(//evil.example/b)>x</div><img srcset=//evil.example/s>",
    "~~<img src=x onerror=window.hit='deleted'>~~ www.evil.example/<img/src=x> a@evil.example",
    "\u202e\u0000\ufeff</div></article></main><h1>mine</h1>",
]
ALLOWED = {
    "P", "H2", "H3", "H4", "H5", "H6", "UL", "OL", "LI", "BLOCKQUOTE", "HR", "PRE", "CODE",
    "FIGURE", "FIGCAPTION", "SPAN", "A", "EM", "STRONG", "B", "BUTTON", "DIV", "FOOTER", "ARTICLE",
    "BR", "DEL", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD",
}  # fmt: skip

INSPECT = """() => {
  const found = [...document.querySelectorAll(".turn, .turn *, #replay *")];
  const attributes = found.flatMap((element) => [...element.attributes]);
  return {
    hit: window.hit ?? null,
    elements: found.map((element) => element.nodeName),
    handlers: attributes.map(({ name }) => name).filter((name) => name.startsWith("on")),
    links: attributes.filter(({ name }) => name === "href").map(({ value }) => value),
    styled: attributes.some(({ name }) => name === "style"),
    sources: attributes.some(({ name }) => name === "src"),
    headings: document.querySelectorAll("h1").length,
    shown: document.body.checkVisibility(),
  };
}"""


def assert_inert(page: Page, stand_in: Any) -> None:
    """Nothing has run, nothing but known elements was made, nothing was asked of other origins."""
    for link in page.query_selector_all(".turn .answer a"):
        assert re.match(r"https?://", link.get_attribute("href") or "")
    found = page.evaluate(INSPECT)
    assert found["hit"] is None
    assert set(found["elements"]) <= ALLOWED
    assert found["handlers"] == []
    assert not found["styled"]
    assert not found["sources"]
    assert found["headings"] == 1
    assert found["shown"]
    assert stand_in.elsewhere == []


@pytest.mark.parametrize("mode", ["chat", "continue"])
def test_what_the_model_writes_is_inert(stand_in_page: Page, stand_in: Any, mode: str) -> None:
    page = stand_in_page
    stand_in.text = "\n\n".join(CORPUS)
    page.check(f"[name=mode][value={mode}]", force=True)
    page.fill("#message", "go")
    page.keyboard.press("Enter")
    page.wait_for_selector("#phase[data-phase=done]")
    page.wait_for_timeout(300)  # what would run, would run by now
    assert_inert(page, stand_in)
    assert (page.locator(".turn .answer").text_content() or "").count("onerror") >= 10
    if mode == "chat":
        assert page.locator(".turn .answer a").count() >= 1


def test_what_the_visitor_writes_is_inert(stand_in_page: Page, stand_in: Any) -> None:
    for mode in ("chat", "continue"):
        stand_in_page.check(f"[name=mode][value={mode}]", force=True)
        stand_in_page.fill("#message", "\n\n".join(CORPUS))
        stand_in_page.keyboard.press("Enter")
        stand_in_page.wait_for_selector("#phase[data-phase=done]")
    assert_inert(stand_in_page, stand_in)


def test_what_a_file_holds_is_inert(stand_in_page: Page, stand_in: Any, tmp_path: Path) -> None:
    evil = "\n\n".join(CORPUS)
    turn = {
        "mode": evil,
        "prompt": evil,
        "answer": evil,
        "error": evil,
        "finish": "error",
        "timings": {"predicted_n": evil, "predicted_per_second": 3, "__proto__": {"polluted": 1}},
        "request": {"path": "v1/completions", "body": {"seed": evil}},
    }
    file = tmp_path / "chat.json"
    parameters = {"system": evil, "temperature": evil, "key": "stolen"}
    chat = {
        "format": "monolane-playground",
        "version": 1,
        "turns": [turn],
        "parameters": parameters,
    }
    file.write_text(json.dumps(chat))
    stand_in_page.set_input_files("#file", file)
    stand_in_page.wait_for_selector(".turn")
    assert_inert(stand_in_page, stand_in)
    assert stand_in_page.evaluate("({}).polluted === undefined")
    assert "NaN" not in stand_in_page.locator("body").inner_text()
    assert stand_in_page.input_value("[name=key]") == ""


def test_what_the_server_says_is_inert(stand_in_page: Page, stand_in: Any) -> None:
    stand_in.refusal = (400, {"error": {"message": "\n".join(CORPUS), "code": 400}})
    stand_in_page.fill("#message", "go")
    stand_in_page.keyboard.press("Enter")
    stand_in_page.wait_for_selector(".turn [role=alert]")
    assert_inert(stand_in_page, stand_in)


FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|"
    r"setAttribute\(\s*[\"'](?:on|style)|createContextualFragment|localStorage(?!\.\w+Item\(\"mono)"
)


def test_text_becomes_markup_through_one_library_alone() -> None:
    files = [path for path in STATIC.glob("*") if path.suffix in (".js", ".html")]
    assert len(files) > 10
    for path in files:
        assert not FORBIDDEN.search(path.read_text()), path.name
    using = {
        path.name for path in files if "vendor/" in path.read_text().replace("vendor/README", "")
    }
    assert using == {"clean.js", "code_colours.js", "markdown.js"}
    purifying = {path.name for path in files if "DOMPurify" in path.read_text()}
    assert purifying == {"clean.js"}
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page)
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page)


# What the Markdown reader never makes: the second wall must stop it all the same.
MARKUP = [
    *(text for text in CORPUS if text.startswith("<")),
    "<p onclick=alert(1) style=color:red id=x>a</p>",
    '<a href="javascript:alert(1)">a</a><a href="data:text/html,x">b</a><a href="//c.d">e</a>',
    '<a href="https://a.b/" target=_top ping=//evil.example>a</a><a href="/v1/models">b</a>',
    "<template><script>alert(1)</script></template><noscript><p title='</noscript><img src=x>'>",
    "<svg></p><style><a id='</style><img src=x onerror=alert(1)>'>",
    "<form><math><mtext></form><form><mglyph><style></math><img src=x onerror=alert(1)>",
    "<table background=//evil.example><td background=//evil.example>a</table>",
]


def test_markup_that_is_no_markdown_is_taken_out(context: BrowserContext, stand_in: Any) -> None:
    # A page without the guard of the fixture: the policy reports handlers that are only parsed.
    page = context.new_page()
    page.goto(ORIGIN)
    found = page.evaluate(
        """async (html) => {
          const { cleanHtml } = await import("/clean.js");
          const place = document.createElement("div");
          place.append(cleanHtml(html));
          document.body.append(place);
          const all = [...place.querySelectorAll("*")];
          const attributes = all.flatMap((element) => [...element.attributes]);
          return {
            elements: all.map((element) => element.nodeName),
            attributes: attributes.map(({ name, value }) => `${name}=${value}`),
          };
        }""",
        "\n".join(MARKUP),
    )
    assert set(found["elements"]) <= {"P", "A", "TABLE", "TBODY", "TR", "TD", "H3"}
    assert set(found["attributes"]) <= {"href=https://a.b/", "href=https://good.example"}
    page.wait_for_timeout(300)  # what would run or load, would by now
    assert page.evaluate("window.hit ?? null") is None
    assert stand_in.elsewhere == []


def test_the_libraries_are_those_that_their_page_names() -> None:
    folder = STATIC / "vendor"
    rows = re.findall(
        r"^\| (\w+\.js) \|.*\| (\w{64}) \|$", (folder / "README.md").read_text(), re.M
    )
    assert {name for name, _ in rows} == {path.name for path in folder.glob("*.js")}
    for name, digest in rows:
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
        assert (folder / f"{name.removesuffix('.js')}.LICENSE").is_file()


def test_nothing_is_loaded_from_elsewhere(stand_in_page: Page, stand_in: Any) -> None:
    stand_in_page.wait_for_load_state("networkidle")
    assert stand_in.elsewhere == []
