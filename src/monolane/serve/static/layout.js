// What of the page is open: the list of conversations, a drawer where there is no room beside the
// talk; and the readings, which fold on a narrow screen.

const WIDE = "(min-width: 75rem)"; // as in style.css
const ROOM = "(min-width: 60rem)";

const byId = (id) => document.getElementById(id);

/** Connect it; returns {closeChats()}, which says whether a drawer was closed. */
export function connectLayout() {
  const toggle = byId("open-chats");
  const wide = window.matchMedia(WIDE);
  const room = window.matchMedia(ROOM);

  const show = (open) => {
    byId("chats").hidden = !open;
    toggle.setAttribute("aria-expanded", String(open));
  };
  const fold = () => {
    show(wide.matches);
    for (const id of ["more", "race"]) byId(id).open = room.matches;
  };
  const closeChats = () => {
    if (wide.matches || byId("chats").hidden) return false;
    const inside = byId("chats").contains(document.activeElement);
    show(false);
    if (inside) toggle.focus();
    return true;
  };

  toggle.addEventListener("click", () => {
    show(byId("chats").hidden);
    if (!byId("chats").hidden) byId("search").focus();
  });
  byId("backdrop").addEventListener("click", closeChats);
  for (const query of [wide, room]) query.addEventListener("change", fold);
  fold();
  return { closeChats };
}
