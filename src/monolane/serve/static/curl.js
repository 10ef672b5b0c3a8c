// A request as a command for a shell. The key is named, not written: a clipboard is no place for it.

/** Return the command that sends `request` ({path, body}) again. */
export function curlCommand(request, withKey) {
  const url = new URL(request.path, document.baseURI).href;
  const lines = [`curl -sN ${quote(url)}`, "-H 'Content-Type: application/json'"];
  if (withKey) lines.push('-H "Authorization: Bearer $MONOLANE_API_KEY"');
  lines.push(`-d ${quote(JSON.stringify(request.body))}`);
  return lines.join(" \\\n  ");
}

/** Quote for POSIX shells: nothing is special within single quotes but their end. */
function quote(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
