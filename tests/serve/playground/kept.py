"""Reloads of a page that has kept its answers: it shows that one is over before the disk has it."""

from playwright.sync_api import Page

_TURNS = """async (count) => {
  const { Library } = await import("/library.js");
  const { isOver } = await import("/turn.js");
  const turns = (await (await Library.open()).list()).flatMap((record) => record.turns);
  return turns.length === count && turns.every(isOver);
}"""


def reload(page: Page, turns: int) -> None:
    """Reload once so many turns, of all conversations and versions, are over on the disk."""
    while not page.evaluate(_TURNS, turns):
        page.wait_for_timeout(100)
    page.reload()
    page.wait_for_selector("#state[data-state=ready]")
