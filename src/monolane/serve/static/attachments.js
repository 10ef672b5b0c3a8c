// Text files put into the message: each a fenced block behind its name.

const MAX_BYTES = 64 << 10; // of one file: more fits into few contexts
const LABEL = "64 KB";

/** Connect a button, a file input and dropped or pasted files; `insert(text)`, `say(problem)`. */
export function connectAttachments({ place, open, input }, insert, say) {
  const take = async (files) => {
    const problems = [];
    for (const file of files) {
      try {
        insert(await blockOf(file));
      } catch (error) {
        problems.push(error.message);
      }
    }
    say(problems.join(" "));
  };
  open.addEventListener("click", () => input.click());
  input.addEventListener("change", async () => {
    await take([...input.files]);
    input.value = "";
  });
  // Dropped elsewhere, a file is not for this page, and the browser would leave it to show the file.
  for (const name of ["dragover", "drop"]) {
    document.addEventListener(name, (event) => {
      if (event.dataTransfer.types.includes("Files")) event.preventDefault();
    });
  }
  place.addEventListener("dragover", (event) => event.preventDefault());
  place.addEventListener("drop", (event) => {
    const files = [...event.dataTransfer.files];
    if (files.length === 0) return; // text: the browser puts it where it was dropped
    event.preventDefault();
    take(files);
  });
  place.addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (files.length === 0) return;
    event.preventDefault();
    take(files);
  });
}

/** Return the file as Markdown. Throws Error if it is too large, or no text. */
async function blockOf(file) {
  if (file.size > MAX_BYTES) {
    throw new Error(`${file.name} has ${Math.ceil(file.size / 1024)} KB; at most ${LABEL} can be attached.`);
  }
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is no text in UTF-8.`);
  }
  if (text.includes("\0")) throw new Error(`${file.name} is no text.`);
  const name = file.name.replace(/[`\r\n]/g, "");
  const language = /\.(\w{1,12})$/.exec(name)?.[1].toLowerCase() ?? "";
  // The fence is longer than any within.
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n\n${fence}${language}\n${text.replace(/\n$/, "")}\n${fence}\n`;
}
