"""The arithmetic of the readings: the rate, its curve, the replay's place, numbers as text."""

import pytest
from playwright.sync_api import Page

RATES = """async (samples) => {
  const { Meter } = await import("/meter.js");
  const meter = new Meter();
  return samples.map(([tokens, ms, arrived, now]) => {
    if (tokens !== null) meter.add({ predicted_n: tokens, predicted_ms: ms }, arrived);
    return meter.rate(now);
  });
}"""


def test_rate_is_of_the_last_second_by_the_servers_clock(workbench: Page) -> None:
    samples = [
        [1, 0, 10, 10],
        [101, 500, 900, 900],  # arrives late: the server's 500 ms count
        [201, 1000, 1000, 1000],
        [1201, 2000, 2000, 2000],
        [2201, 3000, 3000, 3000],
    ]
    # The third still reaches back to the first token; the fourth from 1000 to 2000 ms.
    assert workbench.evaluate(RATES, samples) == [0, 200, 200, 1000, 1000]


def test_rate_falls_while_nothing_comes(workbench: Page) -> None:
    samples = [[1, 0, 0, 0], [101, 1000, 1000, 1000], [None, 0, 0, 1250], [None, 0, 0, 3250]]
    # A quarter of a second may be the network's; two seconds more are silence.
    assert workbench.evaluate(RATES, samples) == [0, 100, 100, pytest.approx(100 / 3)]


def test_one_chunk_of_many_tokens_has_a_rate(workbench: Page) -> None:
    assert workbench.evaluate(RATES, [[51, 100, 0, 0]]) == [500]


def test_the_curve_stays_short_and_keeps_its_mean(workbench: Page) -> None:
    points = workbench.evaluate(
        """async () => {
          const { Meter } = await import("/meter.js");
          const meter = new Meter();
          for (let chunk = 0; chunk < 20000; chunk += 1) {
            meter.add({ predicted_n: 1 + chunk * 10, predicted_ms: chunk * 5 }, chunk * 5);
          }
          return meter.points;
        }"""
    )
    assert 40 <= len(points) <= 96
    assert all(point["rate"] == pytest.approx(2000) for point in points)
    assert points[-1]["ms"] > 95_000


def test_the_curve_and_its_pace_are_drawn_inside_the_picture(workbench: Page) -> None:
    shapes = workbench.evaluate(
        """async () => {
          const { Sparkline } = await import("/sparkline.js");
          const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
          const curve = new Sparkline(svg);
          const points = [{ ms: 10, rate: 200 }, { ms: 20, rate: 400 }, { ms: 30, rate: 0 }];
          curve.draw(points, 100);
          const drawn = [...svg.children].map((shape) => shape.getAttribute("d"));
          curve.draw(points, 1000);
          const above = svg.children[1].getAttribute("d");
          curve.draw([], 100);
          return [...drawn, above, svg.children[2].getAttribute("d")];
        }"""
    )
    area, pace, curve, above, empty = shapes
    assert curve == "M0.0 36.2L150.0 8.3L300.0 64.0"
    assert area == "M0 64L0.0 36.2L150.0 8.3L300.0 64.0L300 64Z"
    assert pace == "M0 50.1H300"
    assert above == ""  # 1000 tokens/s are not on this scale
    assert empty == ""


RACE = """async ([pieces, times]) => {
  const { Race } = await import("/race.js");
  const view = { text: document.createElement("div") };
  for (const name of ["title", "name", "here", "there", "verdict"])
    view[name] = document.createElement("p");
  for (const name of ["hereLane", "thereLane"]) view[name] = document.createElement("progress");
  const race = new Race(view, { mode: "continue", prompt: "" });
  for (const [text, tokens, ms] of pieces) {
    race.add(text, { predicted_n: tokens, predicted_ms: ms }, 1000);
  }
  const seen = times.map((ms) => {
    const more = race.frame(1000 + ms);
    return [view.text.textContent, view.there.textContent, view.thereLane.value, more];
  });
  race.end();
  const more = race.frame(1e9);
  return [seen, view.verdict.textContent, view.text.textContent, more];
}"""


def test_the_replay_keeps_to_100_tokens_per_second(workbench: Page) -> None:
    # 1 + 100 t tokens: after 0, 40, 90, 190 ms 1, 5, 10, 20 of 21; the second piece holds ten in
    # twenty characters, the third ten in ten.
    pieces = [["a", 1, 0], ["b" * 20, 11, 5], ["c" * 10, 21, 10]]
    seen, verdict, text, more = workbench.evaluate(RACE, [pieces, [0, 40, 90, 190]])
    assert [place[0] for place in seen] == ["a", "a" + "b" * 8, "a" + "b" * 18, text[:-1]]
    assert [place[1] for place in seen] == ["1", "5", "10", "20"]
    assert [place[2] for place in seen] == pytest.approx([1 / 21, 5 / 21, 10 / 21, 20 / 21])
    assert all(place[3] for place in seen)
    assert text == "a" + "b" * 20 + "c" * 10
    assert not more
    # 20 tokens after the first: 10 ms here, 200 ms there.
    assert verdict == "20.0× faster: 10 ms here, 200 ms at 100 tokens/s."


def test_the_replay_waits_for_a_slower_answer(workbench: Page) -> None:
    seen, verdict, _, _ = workbench.evaluate(RACE, [[["a", 1, 0], ["b", 3, 400]], [100_000]])
    assert seen == [["ab", "3", 1, True]]
    assert verdict == "Slower than the replay: 400 ms here, 20 ms at 100 tokens/s."


def test_the_replay_cuts_no_character_in_half(workbench: Page) -> None:
    seen, _, _, _ = workbench.evaluate(RACE, [[["😀😀", 5, 4]], [0, 10, 20, 30, 40]])
    assert [place[0] for place in seen] == ["", "", "😀", "😀", "😀😀"]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("rate(8.414)", "8.41"),
        ("rate(41.73)", "41.7"),
        ("rate(5798.7)", "5,799"),
        ("duration(0.4211)", "0.42 ms"),
        ("duration(2.349)", "2.3 ms"),
        ("duration(18.2)", "18 ms"),
        ("duration(1240)", "1.24 s"),
        ("duration(41234)", "41.2 s"),
        ("duration(119600)", "2 min 0 s"),
        ("percent(0.052)", "5.2 %"),
        ("percent(0.412)", "41 %"),
        ("count(12840)", "12,840"),
    ],
)
def test_numbers_as_text(workbench: Page, call: str, text: str) -> None:
    assert workbench.evaluate(f'import("/format.js").then((format) => format.{call})') == text
