// This tab's memory: it survives a reload and ends with the tab. Without storage the page still works.

const PREFIX = "monolane.";

/** Return what was kept under `name`, or null. */
export function kept(name) {
  try {
    return JSON.parse(sessionStorage.getItem(PREFIX + name));
  } catch {
    return null;
  }
}

/** Keep a JSON value under `name`; null forgets it. */
export function keep(name, value) {
  try {
    if (value === null) sessionStorage.removeItem(PREFIX + name);
    else sessionStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // Full or switched off: then it lasts as long as the page.
  }
}
