// Text to the clipboard, also where the page has no secure origin (http on another machine).

/** Copy `text`; resolves to whether it worked. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "visually-hidden";
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return copied;
}

/** Return a button that copies what `text()` returns and says so for a moment. */
export function copyButton(label, text) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.textContent = label;
  button.addEventListener("click", async () => {
    button.textContent = (await copyText(text())) ? "Copied" : "Could not copy";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}
