"use strict";
// Everything that comes from Weir is put into the page as text, never as HTML: keys are what clients send.
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
// Times are in UTC, as in logs.
const moment = (t) => new Date(t).toISOString().slice(0, 19).replace("T", " ") + " UTC";
const clock = (t) => moment(t).slice(11);
const short = (t) => moment(t).slice(11, 16);
const ago = (ms) => {
  const s = Math.max(0, Math.round(ms / 1000)), parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = parts.findIndex(([n]) => s >= n || n === 1);
  const [n, unit] = parts[at], next = parts[at + 1];
  const rest = next ? Math.floor((s % n) / next[0]) : 0;
  return `${Math.floor(s / n)} ${unit}` + (rest ? ` ${rest} ${next[1]}` : "");
};
// range is a count that may be too large by error.
const range = (n, error) => error ? `${number(n - error)} to ${number(n)}` : number(n);

// get asks Weir; of two questions of one kind only the later one counts.
const asked = {};
let token = ""; // what the operator has typed; it is in this page's memory only
const get = async (kind, path, query) => {
  asked[kind]?.abort();
  const mine = asked[kind] = new AbortController();
  const timer = setTimeout(() => mine.abort(new Error("no response")), 10000);
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

// soft is a line beside something more important, and cell a cell of a number.
const soft = (...children) => el("div", {className: "soft"}, ...children);
const cell = (...children) => el("td", {className: "n"}, ...children);
// replace gives an element other children; what had the focus has it again.
const replace = (id, ...children) => {
  const parent = $(id), focus = parent.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  parent.replaceChildren(...children);
  if (focus) parent.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
};
// fill replaces a table's rows.
const fill = (id, rows, none) => {
  const columns = $(id).closest("table").tHead.rows[0].cells.length;
  replace(id, ...(rows.length ? rows : [el("tr", null, el("td", {className: "none", colSpan: columns}, none))]));
};

// Counts over time: lists of points for the total, and for each limit that is shown, by its domain, rule and name.
let past = null, minutes = 60; // minutes is how much the charts show
const kinds = ["allowed", "denied", "near"];
const each = (f) => Object.fromEntries(kinds.map((kind) => [kind, f(kind)]));
const noCounts = () => each(() => Array(past.total.allowed.length).fill(0));
const nameOf = (domain, rule, limit) => [domain, rule, limit].join("\n");
const labelOf = (r, i) => r.limits[i].name || (r.limits.length > 1 ? String(i + 1) : "");
const askHistory = async () => {
  const a = await get("history", "history");
  past = {...a, until: new Date(a.until), step: a.step_seconds};
  // The charts show the time since the start, but at least ten minutes.
  minutes = Math.min(60, Math.max(10, Math.ceil((past.until - new Date(a.since)) / 60000)));
  drawAll();
};

const add = (list) => list.reduce((a, b) => a + b, 0);
const ofLast = (list, minutes) => add(list.slice(-Math.ceil(minutes * 60 / past.step)));
const sumText = (c) => `${number(ofLast(c.allowed, minutes))} allowed, ${number(ofLast(c.denied, minutes))} denied, ${number(ofLast(c.near, minutes))} near the limit`;
const span = () => `${minutes} minutes`;
const at = (i, n) => new Date(past.until - (n - i) * past.step * 1000);
const drawn = (c) => each((kind) => c[kind].slice(-minutes * 60 / past.step));
const highest = (c) => Math.max(1, ...c.allowed.map((a, i) => a + c.denied[i]));
// roundUp returns the next 1, 2 or 5 times a power of ten, for the end of an axis.
const roundUp = (n, power = 10 ** Math.floor(Math.log10(n))) => power * [1, 2, 5, 10].find((k) => k * power >= n);

// chart draws a series as stacked columns, the highest column as high as most. Its label says in words what it shows.
const chart = (series, what, most = highest(drawn(series))) => {
  const c = drawn(series), n = c.allowed.length;
  const svg = (tag, props, ...children) => {
    const e = document.createElementNS($("svg").namespaceURI, tag);
    for (const [name, value] of Object.entries(props)) e.setAttribute(name, value);
    e.append(...children);
    return e;
  };
  const columns = (from, to) => c.allowed.map((_, i) => {
    const a = 100 * (1 - from(i) / most), b = 100 * (1 - to(i) / most);
    return a - b > 0 ? `M${i} ${a.toFixed(2)}V${b.toFixed(2)}h1V${a.toFixed(2)}z` : "";
  }).join("");
  const near = (i) => Math.min(c.near[i], c.allowed[i]);
  const peak = c.denied.indexOf(Math.max(...c.denied));
  const label = `${what}, last ${span()}: ${sumText(c)}` + (c.denied[peak] ? `; most denied at ${short(at(peak, n))}` : "");
  return svg("svg", {class: "chart", viewBox: `0 0 ${n} 100`, preserveAspectRatio: "none", role: "img", "aria-label": visible(label)},
    svg("path", {class: "allowed", d: columns(() => 0, (i) => c.allowed[i] - near(i))}),
    svg("path", {class: "near", d: columns((i) => c.allowed[i] - near(i), (i) => c.allowed[i])}),
    svg("path", {class: "denied", d: columns((i) => c.allowed[i], (i) => c.allowed[i] + c.denied[i])}));
};
// plot is a large chart with axes.
const plot = (series, what, c = drawn(series), most = roundUp(highest(c))) => el("div", {className: "plot"},
  el("div", {className: "y", ariaHidden: "true"}, el("span", null, number(most)), el("span", null, "0")), chart(series, what, most),
  el("div", {className: "x", ariaHidden: "true"}, el("span", null, short(at(0, c.allowed.length))),
    el("span", null, `last ${span()} (UTC), requests in ${past.step} s`), el("span", null, short(past.until))));
// tableOf is the same in numbers, for each five minutes.
const tableOf = (series) => {
  const c = drawn(series), size = Math.max(1, Math.round(300 / past.step)), rows = [];
  for (let i = c.allowed.length; i > 0; i -= size) {
    const of = (list) => number(add(list.slice(Math.max(0, i - size), i)));
    rows.push(el("tr", null, el("th", {scope: "row"}, `${short(at(Math.max(0, i - size), c.allowed.length))} to ${short(at(i, c.allowed.length))}`),
      ...[c.allowed, c.near, c.denied].map((list) => cell(of(list)))));
  }
  return [el("thead", null, el("tr", null, ...["Time", "Allowed", "Of these near the limit", "Denied"].map((h, i) => el("th", {scope: "col", className: i ? "n" : ""}, h)))),
    el("tbody", null, ...rows)];
};
const countsOf = (l) => l.last_hour ?? noCounts();
const hrefOf = (domain, path) => "#/rule?" + new URLSearchParams({domain, rule: path});

// drawAll draws every chart that is shown.
const drawAll = () => {
  if (!past) return;
  if (shownRule) return drawRule();
  say("now-sum", `Last ${span()}: ${sumText(past.total)}.`);
  $("now-chart").replaceChildren(plot(past.total, "All requests"));
  $("now-table").replaceChildren(el("caption", {className: "soft"}, "Requests over time"), ...tableOf(past.total));
  $("rules-span").textContent = "Last " + span();
  replace("denying", ...past.denying.map((l) => el("li", null,
    el("div", null, el("a", {href: hrefOf(l.domain, l.rule), "data-focus": nameOf(l.domain, l.rule, l.limit)}, visible(l.rule)),
      el("span", {className: "soft"}, visible(` ${l.domain}${l.limit ? " · " + l.limit : ""}: `)), el("strong", null, `${number(ofLast(l.denied, 5))} denied`)),
    chart(l, `${l.rule} ${l.limit}`))), ...(past.denying.length ? [] : [el("li", {className: "soft"}, "No request was denied.")]));
  for (const cell of document.querySelectorAll("#rules-rows td.chart")) cell.replaceChildren(chart(countsOf(cell.limit), cell.label));
};

let topKeys = false; // keys are counted
const quotaText = (q) => `${count(q.streams, "Envoy stream")}${q.broken ? ` and ${number(q.broken)} broken` : ""}, ${count(q.buckets, "bucket")}` +
  (q.uncharged ? `; ${count(q.uncharged, "request")} passed before they were charged` + (q.debt ? `, ${number(q.debt)} of them are not charged yet` : "") : "");
let started = null, problem = "";
const showAge = () => { if (started) say("about", `${started.version} · up ${ago(Date.now() - started.at)}`); };
const showStatus = (s) => {
  say("state", s.degraded ? "Degraded" : s.ready ? "Ready" : "Not ready");
  $("state").className = "badge " + (s.degraded ? "none" : s.ready ? "good" : "bad");
  started = {version: s.build?.version ?? "", at: Date.now() - (new Date(s.now) - new Date(s.started_at))}; // by this clock
  showAge();
  title();
  const r = s.rules, facts = [];
  const fact = (name, text, bad) => facts.push(el("dt", null, name), el("dd", {className: bad ? "bad" : ""}, visible(text)));
  problem = s.problem ?? "";
  const causes = [...s.checks.filter((c) => c.error).map((c) => `${c.name}: ${c.error}`), ...r.errors ?? []]
    .filter((text) => !problem.includes(text)).map(visible);
  if (r.errors && r.errors.length < r.error_count) causes.push(`and ${count(r.error_count - r.errors.length, "more error")}`);
  $("causes").hidden = !causes.length;
  if ($("causes").textContent !== causes.join("")) $("causes").replaceChildren(...causes.map((text) => el("li", null, text)));
  fact("Store", s.store);
  if (r.hash) {
    fact("Rules", `${count(r.rules, "rule")} with ${count(r.limits, "limit")} in ${count(r.domains, "domain")}, from ${count(r.files, "file")}`);
    fact("In force since", `${moment(r.loaded_at)}, content ${r.hash.slice(0, 12)}`);
  } else {
    fact("Rules", "no rules are loaded", true);
  }
  const p = r.published, since = (t) => `${ago(new Date(s.now) - new Date(t))} ago, ${moment(t)}`;
  if (p) {
    fact("Published rules", p.newest_version ? `version ${p.newest_version}` + (p.newest_version === p.version ? `, by ${p.author}, ${since(p.published_at)}` : "") : "none");
    fact("This replica", p.version ? `has version ${p.version}, loaded ${since(r.loaded_at)}` : "has no published rules");
    if (p.newest_version !== p.version) fact("Refused", `version ${p.newest_version} is newer, and was refused`, true);
    if (p.error) fact("Redis", p.error, true);
  }
  $("mesh").hidden = !p;
  const x = r.xds;
  if (x) {
    fact("Rules by xDS", `${x.server}, ${x.connected ? "connected" : "not connected"}, ${count(x.domains, "domain")}`, !x.connected);
    if (x.error) fact("xDS", x.error, true);
    if (x.finding_count) fact("Refused", `${count(x.refused_domains, "domain")} of the newest response: ${x.findings[0]}`, true);
  }
  if (s.quotas) fact("Quotas", quotaText(s.quotas));
  $("facts").replaceChildren(...facts);
  topKeys = s.top_keys;
  $("top").hidden = !topKeys;
  return s;
};

const askTop = async () => {
  const by = $("top-by").value, query = {by, n: 20};
  if (shownRule) Object.assign(query, {domain: shownRule.domain, rule: shownRule.path});
  const a = await get("top", "top", query);
  say("top-rule-name", shownRule ? `Only ${visible(shownRule.domain)}: ${visible(shownRule.path)}` : "");
  fill("top-rows", a.keys.map((k) => el("tr", null,
    el("th", {scope: "row", className: "key"}, el("div", {className: "mono"}, visible(k.descriptor)),
      soft(`${visible(k.domain)}: ${visible(k.rule)} `, a.values_hashed ? null : explainButton(k))),
    cell(range(k.hits, k.hits_error)),
    cell(range(k.denied, k.denied_error)),
    cell((100 * k.share).toFixed(k.share < 0.1 ? 1 : 0) + " %", el("meter", {min: 0, max: 1, value: k.share, ariaLabel: "share of the rule"})),
  )), by === "denied" ? "No key was denied." : "No key was counted.");
  say("top-note", `Since ${clock(a.since)}: this minute and the minute before. Weir counts ${a.kept_per_rule} keys for each rule; an inexact count is a range. Share is the key's part of the rule's hits, or of its denied hits.` +
    (a.values_hashed ? " Values are shown as hashes." : "") + (a.missed_hits ? ` ${number(a.missed_hits)} hits were of rules whose keys Weir does not count.` : ""));
};

let from = 0; // of the first rule that is shown
const sum = (d, names) => names.reduce((n, name) => n + (d[name] ?? 0), 0);
const allowed = ["allowed", "allowed_on_failure", "allowed_locally"];
const denied = ["denied", "shadow_denied", "quota_over", "denied_on_failure", "denied_locally"];
// in words: what is no plain outcome of the column that it stands in.
const outcomes = {uncharged: "allowed here, denied by another limit:"};
// counts is the sum of some outcomes, and below it those that need a word: all but the first, and others that are not in the sum.
const counts = (l, names, ...beside) => {
  const d = l.decisions;
  if (!d) return [el("span", {title: "not counted for this rule alone"}, "–")];
  const others = [...names.slice(1), ...beside].filter((name) => d[name]);
  return [number(sum(d, names)),
    ...others.map((name) => soft(`${outcomes[name] ?? name.replaceAll("_", " ")} ${number(d[name])}`))];
};
// reserved is what a reservation has charged, or "" for a limit without one.
const reserved = (r) => !r ? "" : `charged ${number(r.charged)}, corrected ${number(r.corrected)}` +
  (r.real_per_charged === null ? "" : `, real/charged ${r.real_per_charged.toFixed(2)}`) +
  (r.ends_without_token ? `, ${count(r.ends_without_token, "end")} without token` : "") + (r.ends_lost ? `, ${count(r.ends_lost, "end")} lost` : "");
const limitText = (l) => [visible(l.text), soft(visible(l.name ?? "")), soft(reserved(l.reservation))];
const ruleLink = (r) => el("a", {href: hrefOf(r.domain, r.path), "data-focus": `${r.domain}\n${r.path}`}, visible(r.path));
const chartCell = (r, i) => Object.assign(el("td", {className: "chart aside"}), {limit: r.limits[i], label: `${r.path} ${labelOf(r, i)}`});
const ruleRows = (r) => {
  const rows = Math.max(1, r.limits.length);
  const about = el("th", {scope: "rowgroup", rowSpan: rows, className: "key"},
    el("div", {className: "path"}, ruleLink(r), ...(r.mode === "enforce" ? [] : [" ", el("span", {className: "mode"}, r.mode + " mode")])),
    soft(`${visible(r.domain)} · ${visible(r.source)} `),
    el("div", {className: "soft inside"}, visible([r.description, r.owner].filter(Boolean).join(" · ")))); // where the column is left out
  const whom = el("td", {rowSpan: rows, className: "aside"}, visible(r.description ?? ""), soft(visible(r.owner ?? "")));
  if (!r.limits.length) {
    return [el("tr", null, about, el("td", null, r.unlimited ? "unlimited" : "no limit"), el("td", {className: "aside"}), cell(), cell(), whom)];
  }
  return r.limits.map((l, i) => el("tr", {className: i ? "more" : ""}, i ? null : about,
    el("td", null, ...limitText(l)),
    chartCell(r, i),
    cell(...counts(l, allowed, "uncharged")),
    cell(...counts(l, denied)),
    i ? null : whom));
};
const askRules = async () => {
  const a = await get("rules", "rules", {search: $("rules-search").value, sort: $("rules-sort").value, offset: from, n: page, history: true});
  if (from && from >= a.found) { from = 0; return askRules(); }
  fill("rules-rows", a.rules.flatMap(ruleRows), $("rules-search").value ? "No rule has all of these words." : "No rules are loaded.");
  say("rules-range", a.found > page ? `${number(from + 1)} to ${number(from + a.rules.length)} of ${number(a.found)}` : count(a.found, "rule"));
  for (const button of document.querySelectorAll(".pager")) button.hidden = a.found <= page;
  $("rules-back").disabled = from === 0;
  $("rules-on").disabled = from + a.rules.length >= a.found;
  drawAll();
};

// The page of one rule: #/rule?domain=..&rule=..
let shownRule = null; // as GET /rules answers; before that {domain, path}; null for the page of all rules
const askRule = async () => {
  const {domain, path} = shownRule;
  let r;
  try {
    r = (await get("rule", "rules", {domain, rule: path, history: true})).rules[0];
  } catch (err) {
    if (err.status !== 404) throw err;
    $("rule-lost").hidden = false;
    say("rule-lost", visible(err.message));
    return;
  }
  if (shownRule?.domain !== domain || shownRule.path !== path) return;
  $("rule-lost").hidden = true;
  shownRule = r;
  const facts = [], fact = (name, ...what) => facts.push(el("dt", null, name), el("dd", null, ...what));
  fact("Domain", visible(r.domain));
  fact("File, line", visible(r.source));
  fact("Mode", {enforce: "enforce: a request over the limit is denied", shadow: "shadow: counted, and never denied", quota: "quota: denied only when all quotas of the request are over"}[r.mode]);
  if (r.description) fact("Description", visible(r.description));
  if (r.owner) fact("Owner", visible(r.owner));
  if (!r.limits.length) fact("Limit", r.unlimited ? "unlimited" : "none");
  $("rule-facts").replaceChildren(...facts);
  const json = JSON.stringify(r.rule, null, 2);
  say("rule-json", visible(json).replaceAll("\\u{a}", "\n"));
  drawRule();
};
const drawRule = () => {
  const r = shownRule;
  if (!past || !r.limits) return;
  const open = new Set([...$("rule-limits").querySelectorAll("details[open]")].map((d) => d.dataset.limit));
  replace("rule-limits", ...r.limits.map((l, i) => {
    const c = countsOf(l), name = labelOf(r, i) || "Limit";
    const details = el("details", {open: open.has(name), "data-limit": name}, el("summary", {"data-focus": name}, "As a table"),
      el("table", null, el("caption", {className: "soft"}, `${visible(name)}: requests over time`), ...tableOf(c)));
    return el("figure", null, el("figcaption", null, el("h3", null, visible(name)), ...limitText({...l, name: ""}),
      el("div", null, `Last ${span()}: ${sumText(c)}. `, ...(l.decisions ? [`Since the start: ${number(sum(l.decisions, allowed))} allowed, ${number(sum(l.decisions, denied))} denied.`] : []))),
      plot(c, `${r.path} ${name}`), details);
  }));
};
// skeleton is a descriptor of a rule, with what is known of its values.
const skeleton = (path) => path.split(" > ").map((level) => level.includes("=") ? level.replaceAll(",", "\\,") : level + "=").join(",");
const explainButton = (k) => el("button", {
  type: "button", className: "small", "data-focus": `${k.domain}\n${k.rule}\n${k.descriptor}`, "aria-label": `Explain ${visible(k.descriptor)}`,
  onclick: () => { $("explain-domain").value = k.domain; $("explain-descriptor").value = k.descriptor; $("explain-descriptor").focus(); explain(); },
}, "Explain");
// show goes to the page that the address names.
const show = async (moves) => {
  const [name, query] = location.hash.split("?"), q = new URLSearchParams(query);
  shownRule = name === "#/rule" ? {domain: q.get("domain") ?? "", path: q.get("rule") ?? ""} : null;
  $("rule").hidden = !shownRule;
  for (const section of document.querySelectorAll("[data-view=all]")) section.hidden = !!shownRule;
  $("rule-lost").hidden = true;
  for (const id of ["rule-facts", "rule-limits", "rule-json", "explain-answer"]) $(id).replaceChildren();
  title();
  if (shownRule) {
    say("rule-title", visible(shownRule.path));
    $("explain-domain").value = shownRule.domain;
    $("explain-descriptor").value = skeleton(shownRule.path);
  }
  if (moves) { scrollTo(0, 0); $(shownRule ? "rule-title" : "rules-title").focus({preventScroll: true}); }
  drawAll();
  await tables();
};
const title = () => { document.title = ($("state").textContent === "Ready" ? "" : $("state").textContent + ": ") + (shownRule ? visible(shownRule.path) + " · " : "") + "Weir"; };

// refresh does the jobs at once, says whether they were done, and shows when Weir does not answer.
const refresh = async (...jobs) => {
  const results = await Promise.allSettled(jobs.map((job) => job()));
  const failed = results.map((r) => r.reason).find((err) => err && err.name !== "AbortError");
  const text = failed ? `No valid response at ${clock(Date.now())}, the page may show old data: ${failed.message}` : problem;
  $("problem").hidden = !text;
  say("problem-text", visible(text));
  if (failed) $("causes").hidden = true;
  if (!failed) say("fresh", `· updated at ${clock(Date.now())}`);
  return !failed;
};
// tables asks for what is shown beside the state and the charts.
const tables = () => refresh(...(topKeys ? [askTop] : []), shownRule ? askRule : askRules);
const all = async () => {
  if (!await refresh(async () => showStatus(await get("status", "status")))) {
    say("state", "No response");
    $("state").className = "badge bad";
    return;
  }
  await refresh(askHistory);
  await tables();
};

// noLimit stands for an OK that no limit has given: it is no good news, as perhaps a rule does not match what it was written for.
const noLimit = () => el("p", null, el("strong", {className: "badge none"}, "No limit applies"));

// explain asks what a request would be answered now; nothing is charged.
const explain = async () => {
  const answer = (...what) => $("explain-answer").replaceChildren(...what);
  try {
    const a = await get("explain", "explain", {domain: $("explain-domain").value, descriptor: $("explain-descriptor").value});
    const limited = a.descriptors.some((d) => d.limits?.some((l) => !l.replaced_by));
    answer(a.answer.code === "OK" && !limited ? noLimit() : verdict(a.answer), ...a.descriptors.flatMap(explained));
  } catch (err) {
    if (err.name !== "AbortError") answer(el("p", {className: "alarm"}, visible(err.message)));
  }
};
const retry = (seconds) => seconds === null ? "waiting does not help" : `may pass in ${seconds < 1 ? Math.ceil(1000 * seconds) + " ms" : ago(1000 * Math.ceil(seconds))}`;
const verdict = (a) => el("p", null, el("strong", {className: "badge " + (a.code === "OK" ? "good" : "bad")}, a.code), " ",
  visible([a.denied_by ? "denied by " + a.denied_by.join(", ") : "", a.code === "OK" ? "" : retry(a.retry_after_seconds), a.store_error ?? ""].filter(Boolean).join("; ")));
const explained = (d) => {
  const steps = d.entries.map((e, i) => {
    const l = d.levels[i];
    const text = l ? `${l.rule} (${l.source}), by its ${l.by}` : i === d.levels.length ? "no rule" : "not reached";
    return el("li", null, el("span", {className: "mono"}, visible(`${e.key}=${e.value}`)), ": " + visible(text));
  });
  const out = [el("ol", null, ...steps)];
  if (d.message) out.push(el("p", null, (d.reason ? "No limit: " : "Because ") + visible(d.message)));
  for (const l of d.limits ?? []) {
    const what = l.replaced_by ? `replaced by ${l.replaced_by}` : `${l.outcome.replaceAll("_", " ")}, ${number(l.remaining)} remaining` +
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
$("explain-form").addEventListener("submit", explain);
$("token-form").addEventListener("submit", () => { token = $("token").value.trim(); $("token").value = ""; say("token-note", token ? "The token is used until this page is closed." : ""); all(); });
for (const form of document.forms) form.addEventListener("submit", (e) => e.preventDefault());
const isLive = () => !document.hidden && $("auto").checked;
const follow = () => { if (isLive()) all(); };
$("auto").addEventListener("change", follow);
document.addEventListener("visibilitychange", follow);
document.querySelector(".skip").addEventListener("click", (e) => { e.preventDefault(); $("main").focus(); });
window.addEventListener("hashchange", () => show(true));
const turn = async () => {
  if (isLive()) await all();
  setTimeout(turn, every);
};
all().then(() => { show(false); setTimeout(turn, every); });
})();
