// The state of the page is its address: #/run/ID/rollouts?first=12&correct=no
// A link therefore shows somebody else the same thing, and the back button works.

export interface Route {
  view: string;
  id: string;
  tab: string;
  params: URLSearchParams;
}

export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [view = "", id = "", tab = ""] = path.split("/").map(decode);
  return { view: view || "runs", id, tab: tab === "curves" ? "" : tab, params: new URLSearchParams(query) };
}

export function formatRoute(route: Route): string {
  const path = [route.view, route.id, route.tab].map(encodeURIComponent).join("/").replace(/\/+$/, "");
  const query = route.params.toString();
  return `#/${path}${query ? `?${query}` : ""}`;
}

export function link(view: string, id = "", tab = "", params: Record<string, string | number> = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) query.set(name, String(value));
  return formatRoute({ view, id, tab, params: query });
}

export function current(): Route {
  return parseRoute(location.hash);
}

/** Change parameters of the address; null removes one. */
export function setParams(changes: Record<string, string | number | null>, push = false): void {
  const route = current();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") route.params.delete(name);
    else route.params.set(name, String(value));
  }
  const target = formatRoute(route);
  if (target === location.hash) return;
  if (push) location.hash = target;
  else {
    history.replaceState(null, "", target);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
