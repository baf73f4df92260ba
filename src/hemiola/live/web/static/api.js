// Questions to the server, and its word that something has changed.

const KEY = "hemiola-token";
export class NeedsToken extends Error {}

export const keepToken = (token) => sessionStorage.setItem(KEY, token);

function headers() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: headers(), cache: "no-store" });
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({ what: `the server answers ${response.status}`, remedy: "" }));
  if (response.status === 401) throw new NeedsToken(sessionStorage.getItem(KEY) ? problem.what : "");
  throw new Error([problem.what, problem.remedy].filter(Boolean).join(": "));
}

export const get = async (path) => (await ask(`/api/v1/${path}`)).json();

/** The items of all pages. */
export async function getAll(path) {
  const items = [];
  for (let page = await get(path); ; page = await get(`${path}&after=${encodeURIComponent(page.next)}`)) {
    items.push(...page.items);
    if (page.next === null) return items;
  }
}

/** Call `changed` whenever the server says so; ends with an error when the connection does. */
export async function follow(changed) {
  const reader = (await ask("/api/v1/events")).body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the connection was closed");
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    if (parts.some((part) => part.startsWith("event: snapshot"))) changed();
  }
}
