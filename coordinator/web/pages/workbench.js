"use strict";
// What a page does without waiting for another: fields of the chosen method, a question's spelling, progress, copying.
// Every page works without it.

const form = document.getElementById("ask");

function fields() {
  return new URLSearchParams(new FormData(form));
}

async function send(path, body) {
  const headers = { Accept: "application/json", "Content-Type": "application/x-www-form-urlencoded" };
  const answer = await fetch(path, { method: "POST", headers, body, credentials: "same-origin" });
  const said = await answer.json();
  if (!answer.ok) throw said;
  return said;
}

function sentence(problem) {
  return problem.detail || "The coordinator could not be reached. Try again.";
}

function fit() {
  const planned = form.querySelector("input[name=planned]:checked");
  const own = document.getElementById("own");
  own.hidden = Boolean(planned && planned.value);
  const kind = form.elements.kind.value;
  for (const part of form.querySelectorAll("[data-for]")) {
    part.hidden = !part.dataset.for.trim().split(/\s+/).includes(kind);
  }
}

let last = 0;
let timer = 0;
function spell() {
  window.clearTimeout(timer);
  timer = window.setTimeout(async () => {
    const mine = ++last;
    const out = document.getElementById("spelled");
    try {
      const said = await send(`/studies/${form.dataset.study}/check`, fields());
      if (mine !== last) return;
      const planned = said.planned ? `planned: ${said.planned}` : said.label;
      out.textContent = said.problem ? sentence(said.problem) : `${said.estimand} – ${planned}`;
      // What is not chosen yet is no mistake.
      out.parentElement.classList.toggle("wrong", Boolean(said.problem) && said.problem.code !== "E_SCHEMA");
    } catch (problem) {
      if (mine !== last) return;
      out.textContent = sentence(problem);
      out.parentElement.classList.add("wrong");
    }
  }, 350);
}

async function ask(event) {
  event.preventDefault();
  const button = document.getElementById("send");
  const cancel = document.getElementById("cancel");
  const progress = document.getElementById("progress");
  const told = document.getElementById("problem");
  const body = fields();
  button.disabled = true;
  told.replaceChildren();
  progress.textContent = "Sent …";
  const over = (text) => {
    button.disabled = false;
    cancel.hidden = true;
    progress.textContent = "";
    if (text) {
      const box = document.createElement("div");
      const line = document.createElement("p");
      box.className = "notice bad";
      line.textContent = text;
      box.append(line);
      told.append(box);
      told.scrollIntoView({ block: "nearest" });
    }
  };
  try {
    const job = await send(`/studies/${form.dataset.study}/begin`, body);
    cancel.hidden = false;
    cancel.onclick = () => send(`/jobs/${job.job}/cancel`, new URLSearchParams({ csrf: form.elements.csrf.value }));
    const events = new EventSource(`/jobs/${job.job}/events`);
    const heard = (name, act) => events.addEventListener(name, (one) => act(JSON.parse(one.data)));
    heard("waiting", () => { progress.textContent = "Waiting for a free place …"; });
    heard("computing", () => { progress.textContent = "Computing …"; });
    heard("done", (said) => { events.close(); window.location.assign(`/studies/${form.dataset.study}/results/${said.result}`); });
    heard("refused", (said) => { events.close(); over(sentence(said.problem)); });
    heard("cancelled", () => { events.close(); over("Cancelled. The question stands in the record as refused."); });
    events.onerror = () => { events.close(); over("The line to the coordinator broke. The answer may stand in the log: ask again."); };
  } catch (problem) {
    over(sentence(problem));
  }
}

if (form) {
  fit();
  spell();
  form.addEventListener("change", () => { fit(); spell(); });
  form.addEventListener("input", spell);
  form.addEventListener("submit", ask);
}

const design = document.getElementById("design");
let designed = 0;
async function judge() {
  const mine = ++designed;
  const status = document.getElementById("checking");
  status.textContent = "Checking …";
  const headers = { Accept: "text/x-fragment", "Content-Type": "application/x-www-form-urlencoded" };
  const body = new URLSearchParams(new FormData(design));
  try {
    const answer = await fetch("/design", { method: "POST", headers, body, credentials: "same-origin" });
    const text = await answer.text();
    if (mine !== designed) return;
    status.textContent = "";
    if (!answer.ok) return;
    const read = new DOMParser().parseFromString(text, "text/html");
    document.getElementById("said").replaceChildren(...read.body.childNodes);
  } catch {
    if (mine === designed) status.textContent = "The coordinator could not be reached.";
  }
}
if (design) {
  judge();
  let waiting = 0;
  const later = () => { window.clearTimeout(waiting); waiting = window.setTimeout(judge, 800); };
  design.addEventListener("input", later);
  design.addEventListener("change", later);
}

for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  });
}

// A release's place in the coordinator's log, worked out here from its entry: what this page shows is in the log that
// the signed head names, and that log goes on from the one that this browser saw last (RFC 9162, 2.1.3.2 and 2.1.4.2).
const unhex = (text) => Uint8Array.from(text.match(/../g) || [], (pair) => parseInt(pair, 16));
const hexed = (data) => Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");

async function hashed(mark, ...parts) {
  const whole = await new Blob([new Uint8Array([mark]), ...parts]).arrayBuffer();
  return new Uint8Array(await crypto.subtle.digest("SHA-256", whole));
}

const half = (number) => Math.floor(number / 2);

async function rootFrom(entry, index, size, proof) {
  let [place, last] = [index, size - 1];
  let found = await hashed(0, new TextEncoder().encode(entry));
  for (const step of proof) {
    if (last === 0) return "";
    if (place % 2 || place === last) {
      found = await hashed(1, step, found);
      while (place % 2 === 0 && place) [place, last] = [half(place), half(last)];
    } else {
      found = await hashed(1, found, step);
    }
    [place, last] = [half(place), half(last)];
  }
  return last === 0 ? hexed(found) : "";
}

async function grew(old, size, root, proof) {
  if (old.size === size) return old.root === root;
  let [place, last] = [old.size - 1, size - 1];
  const whole = 2 ** Math.round(Math.log2(old.size)) === old.size;
  const steps = whole ? [unhex(old.root), ...proof] : proof;
  if (!steps.length) return false;
  while (place % 2) [place, last] = [half(place), half(last)];
  let [before, now] = [steps[0], steps[0]];
  for (const step of steps.slice(1)) {
    if (last === 0) return false;
    if (place % 2 || place === last) {
      before = await hashed(1, step, before);
      now = await hashed(1, step, now);
      while (place % 2 === 0 && place) [place, last] = [half(place), half(last)];
    } else {
      now = await hashed(1, now, step);
    }
    [place, last] = [half(place), half(last)];
  }
  return last === 0 && hexed(before) === old.root && hexed(now) === root;
}

async function proven(button) {
  const seen = JSON.parse(localStorage.getItem("log") || "null");
  const answer = await fetch(`${button.dataset.prove}?seen=${seen ? seen.size : 0}`, { headers: { Accept: "application/json" } });
  const said = await answer.json();
  if (!answer.ok) throw new Error(sentence(said));
  const head = JSON.parse(atob(JSON.parse(said.head).payload));
  const entry = JSON.parse(said.entry);
  if (entry.kind !== "release" || entry.bundle !== button.dataset.bundle || entry.site !== button.dataset.site) {
    throw new Error("The entry is of another release. Do not use it, and tell the study lead.");
  }
  if ((await rootFrom(said.entry, said.index, head.size, said.proof.map(unhex))) !== head.root) {
    throw new Error("The proof does not lead to the log's root. Do not use the release, and tell the study lead.");
  }
  if (seen && seen.size > head.size) {
    throw new Error(`The log has ${head.size} entries; when this browser last looked, it had ${seen.size}. Unless the study lead said that it was put back from a backup, use nothing of it.`);
  }
  if (seen && !(await grew(seen, head.size, head.root, said.growth.map(unhex)))) {
    throw new Error("The log is another one than when this browser last looked. Use nothing of it, and tell the study lead and a site.");
  }
  localStorage.setItem("log", JSON.stringify({ size: head.size, root: head.root }));
  const since = seen ? ` It goes on from the log of ${seen.size} entries that this browser saw before.` : "";
  return `Holds: entry ${said.index} leads to the root ${head.root.slice(0, 16)}… of the log of ${head.size} entries, as its head of ${head.day} has it.${since}`;
}

for (const button of document.querySelectorAll("[data-prove]")) {
  const out = button.nextElementSibling;
  button.hidden = false;
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      out.textContent = await proven(button);
      out.classList.remove("wrong");
    } catch (problem) {
      out.textContent = problem.message;
      out.classList.add("wrong");
    }
    button.disabled = false;
  });
}
