"""The Markdown that answers are shown in: what it makes of a text, and that no text can hurt."""

import time

import pytest
from playwright.sync_api import Page

RENDER = """async (text) => {
  const { renderMarkdown } = await import("/markdown.js");
  const place = document.createElement("div");
  place.append(renderMarkdown(text));
  for (const caption of place.querySelectorAll("figcaption button")) caption.remove();
  for (const word of place.querySelectorAll("[class^=hljs]")) word.replaceWith(...word.childNodes);
  place.normalize();
  for (const link of place.querySelectorAll("a")) {
    for (const name of ["rel", "target", "title"]) link.removeAttribute(name);
  }
  return place.innerHTML.replaceAll(' tabindex="0"', "").replaceAll(' class="code"', "");
}"""


def code(text: str, language: str = "text") -> str:
    """The markup of a code block."""
    return (
        f"<figure><figcaption><span>{language}</span></figcaption>"
        f"<pre><code>{text}</code></pre></figure>"
    )


CASES = {
    "": "",
    "one\ntwo\n\nthree": "<p>one\ntwo</p><p>three</p>",
    "# A\n## B ##\n###### C": "<h3>A</h3><h4>B</h4><h6>C</h6>",
    "#nothing": "<p>#nothing</p>",
    "**bold** and *italic* and ***both***": (
        "<p><strong>bold</strong> and <em>italic</em> and <em><strong>both</strong></em></p>"
    ),
    "**a *b***": "<p><strong>a <em>b</em></strong></p>",
    "snake_case_name and 2 * 3 * 4": "<p>snake_case_name and 2 * 3 * 4</p>",
    "_so_ and __so__": "<p><em>so</em> and <strong>so</strong></p>",
    "**open": "<p>**open</p>",
    "~~gone~~": "<p><del>gone</del></p>",
    r"\*not\* and \\": "<p>*not* and \\</p>",
    "`a*b*` and ``c`d`` and `open": "<p><code>a*b*</code> and <code>c`d</code> and `open</p>",
    "- a\n- b\n  - c\n\n  d\n- e": (
        "<ul><li><p>a</p></li><li><p>b</p><ul><li>c</li></ul><p>d</p></li><li><p>e</p></li></ul>"
    ),
    "3. a\n4. b\n5. c": '<ol start="3"><li>a</li><li>b</li><li>c</li></ol>',
    "- [x] a\n- [ ] b": "<ul><li>☑ a</li><li>☐ b</li></ul>",
    "a | b\n--|:-:\n*c* | d": (
        '<table><thead><tr><th>a</th><th align="center">b</th></tr></thead>'
        '<tbody><tr><td><em>c</em></td><td align="center">d</td></tr></tbody></table>'
    ),
    "A\n=\n\nB\n---": "<h3>A</h3><h4>B</h4>",
    "a:\n\n    x = 1\n\nb": f"<p>a:</p>{code('x = 1')}<p>b</p>",
    "a  \nb\\\nc": "<p>a<br>b<br>c</p>",
    "- a\nlazy\n\nafter": "<ul><li>a\nlazy</li></ul><p>after</p>",
    "> a\n> - b\n\nc": "<blockquote><p>a</p><ul><li>b</li></ul></blockquote><p>c</p>",
    "a\n\n---\n\nb": "<p>a</p><hr><p>b</p>",
    "```py\nx = 1\n\n\ty\n```\nz": code("x = 1\n\n\ty", "py") + "<p>z</p>",
    "```\nnever closed": code("never closed"),
    "~~~\n```\n~~~": code("```"),
    "1. a\n   ```\n     b\n   ```": f"<ol><li>a{code('  b')}</li></ol>",
    "a [b](https://c.de/f_(g)) h": '<p>a <a href="https://c.de/f_(g)">b</a> h</p>',
    "[a](relative) [b](//x.y) [c](ftp://x)": "<p>[a](relative) [b](//x.y) [c](ftp://x)</p>",
    "![picture](https://a.b/c.png) ![](https://a.b/d.png)": (
        '<p><a href="https://a.b/c.png">picture</a> '
        '<a href="https://a.b/d.png">https://a.b/d.png</a></p>'
    ),
    "[![p](https://a.b/c.png) **q**](https://d.e/)": (
        '<p><a href="https://d.e/">p <strong>q</strong></a></p>'
    ),
    "![x](relative.png) ![y](data:image/png;base64,AA==)": (
        "<p>![x](relative.png) ![y](data:image/png;base64,AA==)</p>"
    ),
    "[a][b]\n\n[b]: https://a.b/": (
        '<p>[a][b]</p><p>[b]: <a href="https://a.b/">https://a.b/</a></p>'
    ),
    '[**a**](https://a.b/ "title")': '<p><a href="https://a.b/"><strong>a</strong></a></p>',
    "see https://a.b/c?d=1. Then": (
        '<p>see <a href="https://a.b/c?d=1">https://a.b/c?d=1</a>. Then</p>'
    ),
    "<b>no</b> &amp; &lt;b&gt; & no": "<p>&lt;b&gt;no&lt;/b&gt; &amp; &lt;b&gt; &amp; no</p>",
    "<div>\n**a**\n</div>": "<p>&lt;div&gt;\n<strong>a</strong>\n&lt;/div&gt;</p>",
    "<!-- a --> <script>b</script>": ("<p>&lt;!-- a --&gt; &lt;script&gt;b&lt;/script&gt;</p>"),
}


@pytest.mark.parametrize("text", CASES)
def test_what_a_text_becomes(workbench: Page, text: str) -> None:
    assert workbench.evaluate(RENDER, text) == CASES[text]


LINKS = [
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    "java\tscript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "vbscript:x",
    "file:///etc/passwd",
    "https://user:password@good.example@evil.example/",
    "http://",
    "//evil.example",
    "https:evil.example",
]


@pytest.mark.parametrize("url", LINKS)
def test_only_plain_web_addresses_become_links(workbench: Page, url: str) -> None:
    made = 'async (url) => (await import("/markdown.js")).safeUrl(url)'
    assert workbench.evaluate(made, url) is None
    assert "<a" not in workbench.evaluate(RENDER, f"[label]({url})").replace("https://user", "")


def test_a_link_says_nothing_about_this_page_to_where_it_leads(workbench: Page) -> None:
    got = workbench.evaluate(
        """async () => {
          const place = document.createElement("div");
          const { renderMarkdown } = await import("/markdown.js");
          place.append(renderMarkdown("[harmless](https://a.b/c)"));
          const { rel, target, title } = place.querySelector("a");
          return [rel, target, title];
        }"""
    )
    assert got == ["noopener noreferrer nofollow", "_blank", "https://a.b/c"]


STREAM = """async ([text, seed]) => {
  const { MarkdownStream, renderMarkdown } = await import("/markdown.js");
  const [grown, whole] = [document.createElement("div"), document.createElement("div")];
  const stream = new MarkdownStream(grown);
  let state = seed;
  const random = (n) => (state = (state * 1103515245 + 12345) % 2147483648) % n;
  for (let at = 0; at < text.length; ) {
    const size = seed === 0 ? 1 : 1 + random(9);
    stream.append(text.slice(at, at + size));
    at += size;
    if (seed === 0 || random(3) === 0) stream.settle();
  }
  stream.settle();
  whole.append(renderMarkdown(text));
  return [grown.innerHTML, whole.innerHTML];
}"""


@pytest.mark.parametrize("seed", range(6))  # 0: formatted anew at each character
def test_a_text_that_comes_in_pieces_ends_as_the_whole(workbench: Page, seed: int) -> None:
    closed = [text for text in CASES if "never closed" not in text]
    text = "1. a\n\n2. b\n\n- c\n\n" + "\n\n".join(closed[seed % 3 :: 3]) + "\n```\nend"
    grown, whole = workbench.evaluate(STREAM, [text, seed])
    assert grown == whole


def test_what_is_shown_before_it_is_formatted_is_the_text(workbench: Page) -> None:
    got = workbench.evaluate(
        """async () => {
          const { MarkdownStream } = await import("/markdown.js");
          const place = document.createElement("div");
          const stream = new MarkdownStream(place);
          const seen = [];
          for (const piece of ["**a", "** <b>", "\\n- [x](http://y.z/)", " c"]) {
            stream.append(piece);
            seen.push(place.textContent);
          }
          stream.settle();
          stream.append(" d");
          return [...seen, place.innerHTML.replace(/<a [^>]*>/, "<a>")];
        }"""
    )
    assert got[0:2] == ["**a", "**a** <b>"]
    assert got[2:4] == ["**a** <b>\n- [x](http://y.z/)", "**a** <b>\n- [x](http://y.z/) c"]
    assert got[4] == "<p><strong>a</strong> &lt;b&gt;</p><ul><li><a>x</a> c d</li></ul>"


@pytest.mark.parametrize("text", ["def f", "```\na\n\nb\n", "- a  b"])
def test_spaces_between_two_pieces_are_not_lost(workbench: Page, text: str) -> None:
    seen = workbench.evaluate(
        """async (text) => {
          const { MarkdownStream } = await import("/markdown.js");
          const place = document.createElement("div");
          const stream = new MarkdownStream(place);
          for (const character of text) {
            stream.settle();
            stream.append(character);
          }
          return (place.querySelector("pre") ?? place).textContent;
        }""",
        text,
    )
    assert seen.split() == text.replace("```", "").replace("- ", "").split()
    assert "\n\n\n" not in seen


# Each drives one rule to where a careless one would take quadratic or exponential time, or dive
# through the stack.
HOSTILE = {
    "brackets": "[" * 50_000,
    "links": "[a](" * 12_000,
    "stars": "*a " * 20_000,
    "nested stars": "*a **b " * 8_000,
    "runs": " ".join("`" * n for n in range(1, 300)),
    "backticks": "` `` " * 10_000,
    "spaces": "` " + " " * 50_000 + "x`",
    "quotes": ">" * 50_000,
    "lists": "- " * 25_000,
    "steps": "\n".join(" " * n + "- a" for n in range(400)),
    "ruler": "- " * 20_000 + "x",
    "fences": "```\n" * 12_501,
    "addresses": "https://" * 6_000,
    "backslashes": "\\" * 50_000,
    "blank lines": "- a\n" + "\n" * 50_000 + "b",
    "underscores": "_a" * 25_000,
    "short underscores": ("_a" * 1_300 + "\n\n") * 18,
    "joined stars": "a**b" * 12_500,
    "nested marks": "*_" * 12_000 + "a" + "_*" * 12_000,
    "short nested marks": ("*_" * 450 + "a" + "_*" * 450 + "\n\n") * 27,
    "wide table": "|a" * 10_000 + "\n" + "|-" * 10_000 + "\n" + "|b" * 5_000,
    "long table": "|a|\n|-|\n" + "|cell six|\n" * 4_500,
    "quoted lists": "> - " * 12_000,
    "items": "- a\n" * 12_000,
    "loose items": "- a\n\n" * 10_000,
    "tags": "<a " * 16_000,
    "images": "![a](" * 10_000,
    "mail addresses": "a@" * 25_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_text_of_50000_characters_takes_a_second(workbench: Page, text: str) -> None:
    tried = []
    for _ in range(3):  # the best counts: the machine may stand still, and a rule may not
        begin = time.perf_counter()
        workbench.evaluate(RENDER, text)
        tried.append(time.perf_counter() - begin)
        # The slowest takes some 50 ms here; quadratic time would be minutes.
        if tried[-1] < 2:
            return
    raise AssertionError(f"seconds: {tried}")
