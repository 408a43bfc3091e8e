// Keeps a page current. It asks for the page again, and exchanges the rows that changed. Without this script a reload does the same.
"use strict";

(() => {
  const LONGEST = 16; // The longest pause while the server does not answer, in intervals.
  const QUIET = 10000; // Between two announcements of changes, in ms.
  const NO_ACCESS = "it gives no access any more: reload the page";
  const byId = (id) => document.getElementById(id);
  // The server's text of each row: the page adds local times to the rows.
  const texts = new WeakMap();
  let tag = null, failures = 0, timer = 0, isAsking = false, changed = 0, announcedAt = 0;

  const pad = (n) => String(n).padStart(2, "0");
  const clock = (d) => `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
  const day = (d) => `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())}`;

  function age(ms) {
    const s = Math.max(0, Math.round(ms / 1000));
    const units = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
    const at = units.findIndex(([n]) => s >= n);
    if (at < 0) return "0s";
    const [[n, unit], next] = [units[at], units[at + 1]];
    const rest = next ? Math.floor((s % n) / next[0]) : 0;
    return `${Math.floor(s / n)}${unit}` + (rest ? ` ${rest}${next[1]}` : "");
  }

  // Returns the time in the zone of the browser, with UTC beside it. A date that is equal in both is written once.
  function both(at, utc) {
    const [date, text] = [day(at), `${day(at)} ${clock(at)}`];
    if (utc.startsWith(text)) return utc;
    return `${text} (${utc.startsWith(date) ? utc.slice(date.length + 1) : utc})`;
  }

  function localize(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (isNaN(at)) continue;
      time.dataset.utc ??= time.textContent;
      const ago = "age" in time.dataset ? `, ${age(Date.now() - at)} ago` : "";
      const text = both(at, time.dataset.utc) + ago;
      if (time.textContent !== text) time.textContent = text;
    }
  }

  const focusable = "a[href], button, input, select, summary, [tabindex]";

  // Returns the element of the row that has the focus, and its place in the row.
  function focusOf(row) {
    const has = document.activeElement;
    return row.contains(has) && has !== row ? { has, at: [...row.querySelectorAll(focusable)].indexOf(has) } : null;
  }

  // Gives the focus to the element with the same link, else to the one at the same place.
  function refocus(row, { has, at }) {
    const all = [...row.querySelectorAll(focusable)];
    const same = all.find((one) => one.hasAttribute("href") && one.getAttribute("href") === has.getAttribute("href"));
    (same ?? all[Math.min(at, all.length - 1)] ?? byId("main")).focus({ preventScroll: true });
  }

  function put(old, row) {
    const focus = focusOf(old);
    old.replaceWith(row);
    if (focus) refocus(row, focus);
  }

  // Gives the focus to a neighbour before its row goes.
  function leave(row) {
    if (!row.contains(document.activeElement)) return;
    const next = row.nextElementSibling ?? row.previousElementSibling;
    (next?.querySelector(focusable) ?? byId("main")).focus({ preventScroll: true });
  }

  // Makes the children of a region those of the new one. Children have ids.
  function exchange(region, fresh) {
    let count = 0, place = null;
    const wanted = new Set([...fresh.children].map((row) => row.id).filter(Boolean));
    for (const row of [...region.children]) {
      if (!row.id || !wanted.has(row.id)) { leave(row); row.remove(); count++; }
    }
    const present = new Map([...region.children].map((row) => [row.id, row]));
    for (const row of [...fresh.children]) {
      const text = row.outerHTML;
      let has = present.get(row.id);
      if (!has || texts.get(has) !== text) {
        count++;
        texts.set(row, text);
        if (has) put(has, row);
        has = row;
        localize(row);
      }
      const after = place ? place.nextElementSibling : region.firstElementChild;
      if (after !== has) {
        const focus = focusOf(has);
        region.insertBefore(has, after);
        if (focus) refocus(has, focus);
      }
      place = has;
    }
    return count;
  }

  function show(html, isAnswer) {
    const fresh = new DOMParser().parseFromString(html, "text/html");
    // The login of a service in the place of the page.
    if (!fresh.getElementById("notices")) throw new Error(NO_ACCESS);
    if (!isAnswer) {
      // The store is away: what was seen last stays, and the notice says why.
      exchange(byId("notices"), fresh.getElementById("notices"));
      return;
    }
    const regions = [...document.querySelectorAll("[data-live]")];
    // A view that could not be shown before has other regions.
    if ([...fresh.querySelectorAll("[data-live]")].some((region) => !byId(region.id))) {
      location.reload();
      return;
    }
    for (const region of regions) {
      const of = fresh.getElementById(region.id);
      const count = of ? exchange(region, of) : 0;
      if (region.tagName === "TBODY") changed += count;
    }
  }

  // Says politely that rows changed, but not each second.
  function announce() {
    const now = Date.now();
    if (changed === 0 || now - announcedAt < QUIET) return;
    byId("changes").textContent = `${changed} ${changed === 1 ? "row" : "rows"} changed, ${clock(new Date())}`;
    [changed, announcedAt] = [0, now];
  }

  function say(text) {
    const connection = byId("connection");
    if (connection.textContent !== text) connection.textContent = text;
  }

  async function ask() {
    if (isAsking || document.visibilityState !== "visible") return;
    isAsking = true;
    clearTimeout(timer);
    try {
      const headers = { Accept: "text/html" };
      if (tag) headers["If-None-Match"] = tag;
      const answer = await fetch(location.href, { headers, cache: "no-store", redirect: "manual", signal: AbortSignal.timeout(30000) });
      document.body.toggleAttribute("data-stale", answer.status === 503);
      if (answer.status === 200) {
        show(await answer.text(), true);
        tag = answer.headers.get("ETag");
      } else if (answer.status === 503) {
        show(await answer.text(), false);
        tag = null;
      } else if (answer.status === 409) {
        location.reload(); // A form that was opened while the store was away, and whose holder is another one by now.
      } else if (answer.status !== 304) {
        // A redirect leads to the login of the service, and has the status 0 here.
        throw new Error([0, 401, 403].includes(answer.status) ? NO_ACCESS : `it answers ${answer.status}`);
      }
      failures = 0;
      say("");
    } catch (error) {
      failures++;
      document.body.toggleAttribute("data-stale", true);
      const words = { TypeError: "it cannot be reached", TimeoutError: "it gives no answer within 30 s" };
      const why = words[error.name] ?? error.message;
      if (failures === 1) since = clock(new Date());
      say(`The server of this page does not answer since ${since}: ${why}. What is shown is from before.`);
    }
    isAsking = false;
    announce();
    localize(document);
    plan();
  }

  let since = "";

  function plan() {
    clearTimeout(timer);
    const interval = Number(document.body.dataset.interval);
    if (interval > 0) timer = setTimeout(ask, interval * Math.min(2 ** Math.max(0, failures - 1), LONGEST));
  }

  document.querySelectorAll("[data-live] > [id]").forEach((row) => texts.set(row, row.outerHTML));
  localize(document);
  if (document.body.dataset.interval) {
    document.addEventListener("visibilitychange", () => { failures = 0; document.visibilityState === "visible" ? ask() : clearTimeout(timer); });
    addEventListener("online", () => { failures = 0; ask(); });
    plan();
  }
})();
