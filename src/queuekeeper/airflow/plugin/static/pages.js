// What the pages do beside being read: Airflow's own light or dark, local times, figures of a running migration,
// another look at a run that has begun, arrow keys on the board, points of plots, and / for the search. Without it every
// page still works; it is as it was when it was loaded.
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

function addLocalTimes() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (new Date().getTimezoneOffset() === 0) return;
  const name = document.getElementById("zone");
  if (name) name.textContent = `, and in ${zone} behind them`;
  const format = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "medium" });
  for (const each of document.querySelectorAll("time")) {
    each.append(` (${format.format(new Date(each.dateTime))})`);
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

function lookAgain(part) {
  setTimeout(() => location.reload(), Number(part.dataset.again) * 1000);
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
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
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
      const { left, width } = mark.getBoundingClientRect();
      return Math.abs(left + width / 2 - event.clientX);
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
  const legend = document.createElement("p");
  legend.className = "legend screen";
  for (const name of names) {
    const marks = found.filter((mark) => mark.dataset.series === name);
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.setAttribute("aria-pressed", "true");
    button.style.borderLeftColor = marks.map((mark) => mark.getAttribute("stroke")).find(Boolean);
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", shown);
      for (const mark of marks) mark.classList.toggle("off", !shown);
    });
    legend.append(button);
  }
  figure.querySelector("figcaption").before(legend);
}

followTheme();
addLocalTimes();
searchBySlash();
document.querySelectorAll("[data-poll]").forEach(follow);
document.querySelectorAll("[data-again]").forEach(lookAgain);
document.querySelectorAll(".board").forEach(leadByArrows);
document.querySelectorAll("svg").forEach(tellPoints);
document.querySelectorAll("figure").forEach(switchSeries);
