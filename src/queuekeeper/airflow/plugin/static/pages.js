// What the pages do beside being read: Airflow's own light or dark, local times, how long ago they were, figures of a
// running migration, making a page anew, arrow keys on the board, points of plots, / for the search, copying what is to be
// typed elsewhere, and links that leave Airflow's frame. Without it every page still works; it is as it was when it was
// loaded.
"use strict";

const root = document.documentElement;

function followTheme() {
  try {
    const outer = window.parent === window ? null : window.parent.document.documentElement;
    if (!outer) return;
    const follow = () => {
      const dark = outer.classList.contains("dark") || outer.dataset.theme === "dark";
      const light = outer.classList.contains("light") || outer.dataset.theme === "light";
      if (dark || light) root.dataset.theme = dark ? "dark" : "light";
    };
    follow();
    new MutationObserver(follow).observe(outer, { attributes: true, attributeFilter: ["class", "data-theme"] });
  } catch {
    // The frame around is somebody else's: the system's own choice stands.
  }
}

const UNITS = [["day", 86_400], ["hour", 3_600], ["minute", 60], ["second", 1]];

function ago(seconds) {
  const [unit, length] = UNITS.find(([, each]) => Math.abs(seconds) >= each) ?? UNITS.at(-1);
  return new Intl.RelativeTimeFormat("en").format(-Math.trunc(seconds / length), unit);
}

function addTimes() {
  const zone = new Date().getTimezoneOffset() === 0 ? "" : Intl.DateTimeFormat().resolvedOptions().timeZone;
  const name = document.getElementById("zone");
  if (name && zone) name.textContent = `, and in ${zone} behind them`;
  const format = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "medium" });
  for (const each of document.querySelectorAll("time")) {
    const at = new Date(each.dateTime);
    const age = ago((Date.now() - at) / 1_000);
    // A column of ages would be wider than the phone that shows it.
    if (each.closest("table")) each.title = age;
    const added = [each.closest("table, footer") ? "" : age, zone && format.format(at)].filter(Boolean);
    if (added.length) each.append(element("wbr", {}), ` (${added.join(", ")})`);
  }
}

const MARKS = { p: "·", c: "…", d: "→", v: "✓", f: "✗", x: "–" };
const WORDS = { p: "planned", c: "copying", d: "copied", v: "verified", f: "failed", x: "left out" };

function paint(board, letters) {
  const before = board.dataset.letters;
  if (before === letters) return;
  const cells = board.querySelectorAll("a");
  for (let at = 0; at < letters.length; at += 1) {
    if (before[at] === letters[at]) continue;
    const cell = cells[at];
    cell.className = `cell ${letters[at]}`;
    cell.lastElementChild.textContent = MARKS[letters[at]];
    cell.setAttribute("aria-label", cell.getAttribute("aria-label").replace(/: .*/, `: ${WORDS[letters[at]]}`));
  }
  board.dataset.letters = letters;
}

function follow(part) {
  const note = document.getElementById("poll");
  const pause = Number(part.dataset.every) * 1000;
  const look = async () => {
    try {
      const answer = await fetch(part.dataset.poll, { headers: { Accept: "application/json" } });
      if (answer.status === 401 || answer.status === 403) {
        note.textContent = "Your sign-in has expired: reload Airflow to go on.";
        return;
      }
      if (!answer.ok) throw new Error(String(answer.status));
      const found = await answer.json();
      if (found.state !== part.dataset.state || (found.asked && part.dataset.asked !== "true")) {
        // Another state has other parts: a question, a ledger, a report.
        window.location.reload();
        return;
      }
      for (const [id, text] of Object.entries(found.texts)) {
        const element = document.getElementById(id);
        if (element && element.textContent !== text) element.textContent = text;
      }
      for (const [id, [value, most]] of Object.entries(found.bars)) {
        const bar = document.getElementById(id);
        if (!bar) continue;
        bar.max = most;
        bar.value = value;
      }
      paint(document.getElementById("board"), found.board);
      note.textContent = "";
    } catch {
      note.textContent = "No answer: these figures are from before. Trying again.";
    }
    setTimeout(look, pause);
  };
  setTimeout(look, pause);
}

function leadByArrows(board) {
  const cells = [...board.querySelectorAll("a")];
  board.addEventListener("keydown", (event) => {
    const at = cells.indexOf(event.target);
    if (at < 0) return;
    const top = cells[0].offsetTop;
    const row = cells.findIndex((cell) => cell.offsetTop !== top);
    const width = row < 0 ? cells.length : row;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: width, ArrowUp: -width }[event.key];
    const next = event.key === "Home" ? 0 : event.key === "End" ? cells.length - 1 : step === undefined ? -1 : at + step;
    if (!cells[next]) return;
    event.preventDefault();
    cells[at].tabIndex = -1;
    cells[next].tabIndex = 0;
    cells[next].focus();
  });
}

// Where a browser keeps that pages are made anew by their button alone.
const STILL = "queuekeeper.still";

function element(name, properties, ...content) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...content);
  return made;
}

// Whoever reads by keyboard, writes, marks text or has opened something would lose it.
function inUse(box) {
  const fields = [...document.querySelectorAll("input:not([type='checkbox']), textarea")];
  const written = fields.some((each) => each.value !== each.defaultValue);
  const opened = document.querySelector("details[open], .tip:not([hidden])") || !getSelection().isCollapsed;
  return document.hidden || written || opened || ![document.body, box, null].includes(document.activeElement);
}

function addRefresh() {
  const age = element("span", {});
  const made = performance.now();
  const tell = () => {
    const seconds = (performance.now() - made) / 1_000;
    age.textContent = `Made ${seconds < 60 ? "just now" : ago(seconds)}`;
  };
  const button = element("button", { className: "link", onclick: () => location.reload() }, "Refresh");
  const line = element("p", { className: "made note" }, age, button);
  document.querySelector("body > header").append(line);
  tell();
  setInterval(tell, 15_000);
  const part = document.querySelector("[data-again]");
  if (part) refreshAgain(line, Number(part.dataset.again));
}

function refreshAgain(line, seconds) {
  const box = element("input", { type: "checkbox", checked: !localStorage.getItem(STILL) });
  box.onchange = () => {
    if (box.checked) localStorage.removeItem(STILL);
    else localStorage.setItem(STILL, "yes");
  };
  const note = element("span", { ariaLive: "polite" });
  line.append(element("label", {}, box, seconds === 60 ? " every minute" : ` every ${seconds} seconds`), note);
  setInterval(async () => {
    if (!box.checked || inUse(box)) return;
    try {
      // A browser's own page of an error would stay for ever: see first whether the server answers.
      const answer = await fetch(document.querySelector("link[rel=stylesheet]").href, { cache: "no-store" });
      if (answer.ok) location.reload();
      else note.textContent = "Your sign-in has expired: reload Airflow to go on.";
    } catch {
      note.textContent = "No answer: this page is from before. Trying again.";
    }
  }, seconds * 1_000);
}

function offerCopies() {
  for (const code of document.querySelectorAll("code[data-copy]")) {
    const text = code.textContent;
    const button = element("button", { type: "button", className: "copy", ariaLabel: `Copy ${text}` }, "Copy");
    const say = (word) => {
      button.textContent = word;
      setTimeout(() => {
        button.textContent = "Copy";
      }, 2_000);
    };
    button.onclick = async () => {
      try {
        await navigator.clipboard.writeText(text);
        say("Copied");
      } catch {
        // Without TLS browsers give a page no clipboard.
        getSelection().selectAllChildren(code);
        say(document.execCommand("copy") ? "Copied" : "Press Ctrl-C");
      }
    };
    // What stands in a heading is read out as a part of its name.
    (code.closest("h1") ?? code).after(" ", button);
  }
}

// Airflow's frame forbids its content to lead the whole window elsewhere. A link of the window itself may.
function leaveFrame() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[target="_top"]');
    if (!link || window.parent === window || event.ctrlKey || event.metaKey || event.shiftKey) return;
    try {
      const outer = window.parent.document.createElement("a");
      outer.href = link.href;
      event.preventDefault();
      outer.click();
    } catch {
      // The frame around is somebody else's: it decides.
    }
  });
}

function searchBySlash() {
  const field = document.getElementById("search");
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select")) return;
    event.preventDefault();
    field.focus();
    field.select();
  });
}

// A mark of a plot says its instant and value in its title, for pages without a script. Here a pointer, a finger or arrow
// keys lead from instant to instant, and the values of all series that are shown are told at once.
function tellPoints(plot) {
  const marks = [...plot.querySelectorAll("title")].map((title) => {
    const mark = title.parentNode;
    [mark.dataset.at, mark.dataset.value] = title.textContent.split(": ");
    title.remove();
    return mark;
  });
  if (marks.length === 0) return;
  const tip = element("div", { className: "tip", hidden: true });
  plot.after(tip);
  let chosen = 0;
  const stops = () => {
    const found = new Map();
    for (const mark of marks) {
      if (mark.classList.contains("off")) continue;
      found.set(mark.dataset.at, [...(found.get(mark.dataset.at) ?? []), mark]);
    }
    return [...found.values()];
  };
  const choose = (number) => {
    const found = stops();
    chosen = Math.max(0, Math.min(number, found.length - 1));
    const stop = found[chosen] ?? [];
    tip.textContent = stop.length ? `${stop[0].dataset.at}: ${stop.map((mark) => mark.dataset.value).join(", ")}` : "";
    plot.setAttribute("aria-valuemax", Math.max(0, found.length - 1));
    plot.setAttribute("aria-valuenow", chosen);
    plot.setAttribute("aria-valuetext", tip.textContent);
    return stop;
  };
  const hide = () => {
    tip.hidden = true;
    for (const mark of marks) mark.classList.remove("at");
  };
  const show = (number) => {
    hide();
    const stop = choose(number);
    if (stop.length === 0) return;
    for (const mark of stop) mark.classList.add("at");
    tip.hidden = false;
    const frame = tip.offsetParent.getBoundingClientRect();
    const [first] = stop.map((mark) => mark.getBoundingClientRect());
    const left = first.left + first.width / 2 - frame.left - tip.offsetWidth / 2;
    tip.style.left = `${Math.max(0, Math.min(left, frame.width - tip.offsetWidth))}px`;
    tip.style.top = `${plot.getBoundingClientRect().top - frame.top - tip.offsetHeight}px`;
  };
  const nearest = (event) => {
    const far = ([mark]) => {
      const { left, right } = mark.getBoundingClientRect();
      return Math.max(left - event.clientX, event.clientX - right, 0);
    };
    const distances = stops().map(far);
    show(distances.indexOf(Math.min(...distances)));
  };
  plot.setAttribute("role", "slider");
  plot.setAttribute("aria-roledescription", "plot");
  plot.setAttribute("aria-valuemin", 0);
  plot.tabIndex = 0;
  choose(0);
  plot.addEventListener("pointerdown", nearest);
  plot.addEventListener("pointermove", nearest);
  plot.addEventListener("pointerleave", () => document.activeElement === plot || hide());
  plot.addEventListener("focus", () => tip.hidden && show(chosen));
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, Home: -chosen, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    show(chosen + step);
  });
}

function switchSeries(figure) {
  const found = [...figure.querySelectorAll("[data-series]")];
  const names = [...new Set(found.map((mark) => mark.dataset.series))];
  if (names.length < 2) return;
  const legend = element("p", { className: "legend screen" });
  for (const name of names) {
    const marks = found.filter((mark) => mark.dataset.series === name);
    const button = element("button", { type: "button", ariaPressed: "true" }, name);
    button.style.borderLeftColor = marks.map((mark) => mark.getAttribute("stroke")).find(Boolean);
    button.onclick = () => {
      const shown = button.ariaPressed !== "true";
      button.ariaPressed = String(shown);
      for (const mark of marks) mark.classList.toggle("off", !shown);
    };
    legend.append(button);
  }
  figure.querySelector("figcaption").before(legend);
}

followTheme();
addTimes();
addRefresh();
offerCopies();
leaveFrame();
searchBySlash();
document.querySelectorAll("[data-poll]").forEach(follow);
document.querySelectorAll(".board").forEach(leadByArrows);
document.querySelectorAll("svg").forEach(tellPoints);
document.querySelectorAll("figure").forEach(switchSeries);
