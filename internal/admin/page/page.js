"use strict";
// Everything that comes from the sidecar is put into the page as text, never as HTML: keys are what clients send.
(() => {
const every = 5000; // ms between two refreshes
const page = 50;    // rules at once
const $ = (id) => document.getElementById(id);

// el makes an element of properties and children; a child that is a string is text.
const el = (tag, props, ...children) => {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name in e) e[name] = value; else e.setAttribute(name, value);
  }
  e.append(...children.filter((c) => c !== null));
  return e;
};
// visible shows what has no shape of its own, such as line ends and marks that turn the writing around.
const visible = (s) => s.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => "\\u{" + c.codePointAt(0).toString(16) + "}");
const say = (id, text) => { if ($(id).textContent !== text) $(id).textContent = text; };
const number = (n) => n.toLocaleString("en");
const count = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;
// Times are the browser's, and say in which zone.
const time = {hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short"};
const clock = (t) => new Date(t).toLocaleTimeString(undefined, time);
const moment = (t) => new Date(t).toLocaleString(undefined, {year: "numeric", month: "short", day: "numeric", ...time});
const ago = (ms) => {
  const s = Math.max(0, Math.round(ms / 1000)), parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = parts.findIndex(([n]) => s >= n || n === 1);
  const [n, unit] = parts[at], next = parts[at + 1];
  const rest = next ? Math.floor((s % n) / next[0]) : 0;
  return `${Math.floor(s / n)} ${unit}` + (rest ? ` ${rest} ${next[1]}` : "");
};
// range is a count that may be too large by error.
const range = (n, error) => error ? `${number(n - error)} to ${number(n)}` : number(n);

// get asks the sidecar; of two questions of one kind only the later one counts.
const asked = {};
let token = ""; // what the operator has typed; it is in this page's memory only
const get = async (kind, path, query) => {
  asked[kind]?.abort();
  const mine = asked[kind] = new AbortController();
  const timer = setTimeout(() => mine.abort(new Error("no answer")), 10000);
  try {
    const res = await fetch(path + (query ? "?" + new URLSearchParams(query) : ""), {signal: mine.signal, headers: {Accept: "application/json", ...(token && {Authorization: "Bearer " + token})}});
    const text = await res.text();
    if (!res.ok) {
      let said = text;
      try { said = JSON.parse(text).error ?? text; } catch { /* it is plain text */ }
      throw Object.assign(new Error(said.trim()), {status: res.status});
    }
    return JSON.parse(text);
  } finally {
    clearTimeout(timer);
  }
};

// fill replaces a table's rows; what had the focus has it again.
const fill = (id, rows, columns, none) => {
  const body = $(id), focus = body.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  if (!rows.length) rows = [el("tr", null, el("td", {className: "none", colSpan: columns}, none))];
  body.replaceChildren(...rows);
  if (focus) body.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
};

const showStatus = (s) => {
  say("state", s.ready ? "Ready" : "Not ready");
  $("state").className = "badge " + (s.ready ? "good" : "bad");
  say("about", `${s.build?.version ?? ""} · up ${ago(new Date(s.now) - new Date(s.started_at))}`);
  document.title = (s.ready ? "" : "Not ready: ") + "Weir";
  const r = s.rules, facts = [];
  const fact = (name, text, bad) => facts.push(el("dt", null, name), el("dd", {className: bad ? "bad" : ""}, visible(text)));
  for (const c of s.checks) if (c.error) fact("Not ready", `${c.name}: ${c.error}`, true);
  fact("Counters in", s.store);
  if (r.hash) {
    fact("Rules", `${count(r.rules, "rule")} with ${count(r.limits, "limit")} in ${count(r.domains, "domain")}, from ${count(r.files, "file")}`);
    fact("In force since", `${moment(r.loaded_at)}, content ${r.hash.slice(0, 12)}`);
  } else {
    fact("Rules", "none are loaded", true);
  }
  const p = r.published;
  if (p) {
    fact("Published rules", p.version ? `version ${p.version} by ${p.author}, ${moment(p.published_at)}` : "none");
    if (p.newest_version !== p.version) fact("Refused", `version ${p.newest_version} is newer, and was refused`, true);
    if (p.error) fact("Redis", p.error, true);
  }
  const x = r.xds;
  if (x) {
    fact("Rules by xDS", `${x.server}, ${x.connected ? "connected" : "not connected"}, ${count(x.domains, "domain")}`, !x.connected);
    if (x.error) fact("xDS", x.error, true);
    if (x.finding_count) fact("Refused", `${count(x.refused_domains, "domain")} of the newest answer: ${x.findings[0]}`, true);
  }
  $("facts").replaceChildren(...facts);
  $("refused").hidden = !r.error_count;
  if (r.error_count) {
    say("refused-about", `${r.hash ? "Older rules are in force. " : ""}${count(r.error_count, "error")}, found ${moment(r.errors_at)}` +
      (r.errors.length < r.error_count ? `; the first ${r.errors.length}:` : ":"));
    const lines = r.errors.map((e) => el("li", null, visible(e)));
    if ($("refused-errors").textContent !== lines.map((l) => l.textContent).join("")) $("refused-errors").replaceChildren(...lines);
  }
  $("top").hidden = !s.top_keys;
  return s;
};

let topRule = null; // {domain, path}, or null for all rules
const askTop = async () => {
  const by = $("top-by").value, query = {by, n: 20};
  if (topRule) Object.assign(query, {domain: topRule.domain, rule: topRule.path});
  const a = await get("top", "top", query);
  $("top-rule").hidden = !topRule;
  say("top-rule-name", topRule ? `Only ${visible(topRule.domain)}: ${visible(topRule.path)}` : "");
  fill("top-rows", a.keys.map((k) => el("tr", null,
    el("th", {scope: "row", className: "key"}, el("div", {className: "mono"}, visible(k.descriptor)),
      el("div", {className: "soft"}, `${visible(k.domain)}: ${visible(k.rule)}`)),
    el("td", {className: "n"}, range(k.hits, k.hits_error)),
    el("td", {className: "n"}, range(k.denied, k.denied_error)),
    el("td", {className: "n"}, (100 * k.share).toFixed(k.share < 0.1 ? 1 : 0) + " %", el("meter", {min: 0, max: 1, value: k.share, ariaLabel: "share of the rule"})),
  )), 4, by === "denied" ? "Nobody was denied." : "Nobody came.");
  say("top-note", `Since ${clock(a.since)}: this minute and the one before. ${a.kept_per_rule} keys are counted for each rule; a key that comes and goes has a range. Share is of all hits of the rule, or of its denied ones.` +
    (a.values_hashed ? " Values are shown as hashes." : "") + (a.missed_hits ? ` ${number(a.missed_hits)} hits were of rules beyond what is counted.` : ""));
};

let from = 0; // of the first rule that is shown
const sum = (d, names) => names.reduce((n, name) => n + (d[name] ?? 0), 0);
const allowed = ["allowed", "allowed_on_failure", "allowed_locally"];
const denied = ["denied", "shadow_denied", "quota_over", "denied_on_failure", "denied_locally"];
// in words: what is no plain outcome of the column that it stands in.
const outcomes = {uncharged: "allowed here, denied by another limit:"};
// counts is the sum of some outcomes, and below it those that need a word: all but the first, and others that are not in the sum.
const counts = (d, names, ...beside) => {
  if (!d) return [el("span", {title: "not counted for this rule alone"}, "–")];
  const others = [...names.slice(1), ...beside].filter((name) => d[name]);
  return [number(sum(d, names)),
    ...others.map((name) => el("div", {className: "soft"}, `${outcomes[name] ?? name.replaceAll("_", " ")} ${number(d[name])}`))];
};
const limitText = (l) => [visible(l.text), el("div", {className: "soft"}, visible(l.name ?? "")),
  l.written ? el("div", {className: "soft"}, el("span", {className: "mode"}, "boosted"), ` from ${visible(l.written)}`) : null,
  l.boosted_keys ? el("div", {className: "soft"}, el("span", {className: "mode"}, "boosted"), ` for ${count(l.boosted_keys, "key")}`) : null];
const ruleRows = (r) => {
  const rows = Math.max(1, r.limits.length);
  const about = el("th", {scope: "rowgroup", rowSpan: rows, className: "key"},
    el("div", {className: "path"}, visible(r.path), ...(r.mode === "enforce" ? [] : [" ", el("span", {className: "mode"}, r.mode + " mode")])));
  const where = el("div", {className: "soft"}, `${visible(r.domain)} · ${visible(r.source)} `);
  about.append(where);
  if (r.limits.length && !$("top").hidden) {
    const show = el("button", {type: "button", className: "small"}, "Top keys");
    show.dataset.focus = `${r.domain}\n${r.path}`;
    show.setAttribute("aria-label", `Top keys of ${r.path}`);
    show.addEventListener("click", () => { topRule = r; refresh(askTop); $("top-by").focus(); });
    where.append(show);
  }
  const whom = el("td", {rowSpan: rows, className: "aside"}, visible(r.description ?? ""), el("div", {className: "soft"}, visible(r.owner ?? "")));
  about.append(el("div", {className: "soft inside"}, visible([r.description, r.owner].filter(Boolean).join(" · ")))); // where the column is left out
  if (!r.limits.length) {
    return [el("tr", null, about, el("td", null, r.unlimited ? "unlimited" : "no limit"), el("td", {className: "n"}), el("td", {className: "n"}), whom)];
  }
  return r.limits.map((l, i) => el("tr", {className: i ? "more" : ""}, i ? null : about,
    el("td", null, ...limitText(l)),
    el("td", {className: "n"}, ...counts(l.decisions, allowed, "uncharged")),
    el("td", {className: "n"}, ...counts(l.decisions, denied)),
    i ? null : whom));
};
const askRules = async () => {
  const a = await get("rules", "rules/list", {search: $("rules-search").value, sort: $("rules-sort").value, offset: from, n: page});
  if (from && from >= a.found) { from = 0; return askRules(); }
  fill("rules-rows", a.rules.flatMap(ruleRows), 5, $("rules-search").value ? "No rule has all of these words." : "No rules are loaded.");
  say("rules-range", a.found ? `${number(from + 1)} to ${number(from + a.rules.length)} of ${number(a.found)}` : "");
  $("rules-back").disabled = from === 0;
  $("rules-on").disabled = from + a.rules.length >= a.found;
};

const askBoosts = async () => {
  const a = await get("boosts", "boosts");
  $("boosts").hidden = !a.boosts.length && !a.error;
  say("boosts-note", a.error ? `There may be others: ${visible(a.error)}` : "");
  fill("boosts-rows", a.boosts.map((b) => el("tr", null,
    el("th", {scope: "row", className: "key"}, el("div", {className: "path"}, visible(b.rule)), el("div", {className: "soft"}, visible(b.domain))),
    el("td", {className: "mono"}, visible((b.keys ?? []).join(", ")) || "all keys"),
    el("td", {className: "n"}, String(b.factor), b.problem ? el("div", {className: "soft"}, visible(b.problem)) : null),
    el("td", null, moment(b.expires_at)),
    el("td", null, visible(b.reason), el("div", {className: "soft"}, visible(b.author))))), 5, "None.");
};

// refresh does the jobs at once, says whether they were done, and shows when the sidecar does not answer.
const refresh = async (...jobs) => {
  const results = await Promise.allSettled(jobs.map((job) => job()));
  const failed = results.map((r) => r.reason).find((err) => err && err.name !== "AbortError");
  $("lost").hidden = !failed;
  if (failed) say("lost", `No good answer at ${clock(Date.now())}, what is shown may be old: ${failed.message}`);
  else say("fresh", `· last at ${clock(Date.now())}`);
  return !failed;
};
const all = async () => {
  if (!await refresh(async () => showStatus(await get("status", "status")))) {
    say("state", "No answer");
    $("state").className = "badge bad";
    return;
  }
  await refresh(...($("top").hidden ? [] : [askTop]), askRules, askBoosts);
};

// noLimit stands for an OK that no limit has given: it is no good news, as perhaps a rule does not match what it was written for.
const noLimit = () => el("p", null, el("strong", {className: "badge none"}, "No limit applies"));

// explain asks what a request would be answered now; nothing is charged.
const explain = async () => {
  const show = (...what) => $("explain-answer").replaceChildren(...what);
  try {
    const a = await get("explain", "explain", {domain: $("explain-domain").value, descriptor: $("explain-descriptor").value});
    const limited = a.descriptors.some((d) => d.limits?.some((l) => !l.replaced_by));
    show(a.answer.code === "OK" && !limited ? noLimit() : verdict(a.answer), ...a.descriptors.flatMap(explained));
  } catch (err) {
    if (err.name !== "AbortError") show(el("p", {className: "alarm"}, visible(err.message)));
  }
};
const retry = (seconds) => seconds === undefined ? "" : seconds < 0 ? "no wait helps" : `may pass in ${seconds < 1 ? Math.ceil(1000 * seconds) + " ms" : ago(1000 * Math.ceil(seconds))}`;
const verdict = (a) => el("p", null, el("strong", {className: "badge " + (a.code === "OK" ? "good" : "bad")}, a.code), " ",
  visible([a.denied_by ? "denied by " + a.denied_by.join(", ") : "", retry(a.retry_after_seconds), a.store_error ?? ""].filter(Boolean).join("; ")));
const explained = (d) => {
  const steps = d.entries.map((e, i) => {
    const l = d.levels[i];
    const text = l ? `${l.rule} (${l.source}), by its ${l.by}` : i === d.levels.length ? "no rule" : "not reached";
    return el("li", null, el("span", {className: "mono"}, visible(`${e.key}=${e.value}`)), ": " + visible(text));
  });
  const out = [el("ol", null, ...steps)];
  if (d.message) out.push(el("p", null, "No limit: " + visible(d.message)));
  if (d.near?.length) out.push(el("p", null, "Near:"), el("ul", null, ...d.near.map((n) => el("li", null, visible(n.message)))));
  for (const l of d.limits ?? []) {
    const what = l.replaced_by ? `replaced by ${l.replaced_by}` : `${l.outcome.replaceAll("_", " ")}, ${number(l.remaining)} left` +
      (l.fits ? "" : `, ${retry(l.retry_after_seconds)}`);
    out.push(el("p", null, el("strong", null, visible(l.name ?? "limit")), ` ${visible(l.text)}: `, visible(what),
      el("br"), el("span", {className: "soft mono"}, visible(l.key))));
  }
  return out;
};

let typing;
$("rules-search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => { from = 0; refresh(askRules); }, 250); });
$("rules-sort").addEventListener("change", () => { from = 0; refresh(askRules); });
$("rules-back").addEventListener("click", () => { from = Math.max(0, from - page); refresh(askRules); });
$("rules-on").addEventListener("click", () => { from += page; refresh(askRules); });
$("top-by").addEventListener("change", () => refresh(askTop));
$("top-all").addEventListener("click", () => { topRule = null; refresh(askTop); $("top-by").focus(); });
$("explain-form").addEventListener("submit", explain);
$("token-form").addEventListener("submit", () => { token = $("token").value.trim(); $("token").value = ""; all(); });
for (const form of document.forms) form.addEventListener("submit", (e) => e.preventDefault());
$("auto").addEventListener("change", () => { if ($("auto").checked) all(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden && $("auto").checked) all(); });
const turn = async () => {
  if (!document.hidden && $("auto").checked) await all();
  setTimeout(turn, every);
};
all().then(() => setTimeout(turn, every));
})();
