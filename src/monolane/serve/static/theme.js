// Light or dark: the system's choice until the visitor makes another. Runs before the page is drawn,
// as a classic script, so that no wrong colour flashes. The choice is all that outlives the tab.

(() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const stored = () => {
    try {
      return localStorage.getItem("monolane.theme");
    } catch {
      return null; // storage is switched off
    }
  };

  const keep = (theme) => {
    try {
      if (theme === null) localStorage.removeItem("monolane.theme");
      else localStorage.setItem("monolane.theme", theme);
    } catch {
      // Then it lasts as long as the page.
    }
  };

  const apply = (theme) => {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  };

  apply(stored());

  document.addEventListener("DOMContentLoaded", () => {
    document.getElementById("theme").addEventListener("click", () => {
      const system = dark.matches ? "dark" : "light";
      const now = root.dataset.theme ?? system;
      const next = now === "dark" ? "light" : "dark";
      const choice = next === system ? null : next; // back to the system's: follow it again
      keep(choice);
      apply(choice);
    });
  });
})();
