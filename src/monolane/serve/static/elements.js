// Elements with inert text.

export function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className !== "") made.className = className;
  if (text !== "") made.textContent = text;
  return made;
}

/** Return a button; `name` is what a screen reader says where the text is a sign. */
export function button(text, className, action, name = "") {
  const made = element("button", `quiet ${className}`.trim(), text);
  made.type = "button";
  if (name !== "") made.setAttribute("aria-label", name);
  made.addEventListener("click", action);
  return made;
}
