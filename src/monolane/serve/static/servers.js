// The servers that an answer may come from: this one, and for a comparison another by its address.
//
//   {url: "" for this one, else where its routes begin, with "/" at the end; key; model}
//
// The page's own policy lets it load from this server alone (_http/page.py). Requests to another one go
// through a frame with an empty document, whose policy allows connections and nothing else.

let frame = null; // promise of the frame's window

/** The fetch function for a server. */
export async function fetchOf(server) {
  if (server.url === "") return fetch.bind(window);
  frame ??= new Promise((resolve, reject) => {
    const element = document.createElement("iframe");
    element.hidden = true;
    element.title = "Connections to other servers";
    element.src = "elsewhere.html";
    element.addEventListener("load", () => resolve(element.contentWindow));
    element.addEventListener("error", reject);
    document.body.append(element);
  });
  const elsewhere = await frame;
  return elsewhere.fetch.bind(elsewhere);
}

/** Return where a server's routes begin, of an address with or without `/v1`; null if it is none. */
export function baseUrl(address) {
  let url;
  try {
    url = new URL(address.trim());
  } catch {
    return null;
  }
  if (!["http:", "https:"].includes(url.protocol) || url.username !== "" || url.password !== "") return null;
  const path = url.pathname.replace(/\/+$/, "").replace(/\/v1$/, "");
  return `${url.origin}${path}/`;
}
