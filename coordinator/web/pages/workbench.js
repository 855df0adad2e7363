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
  const answer = await fetch("/design", { method: "POST", headers, body, credentials: "same-origin" });
  const text = await answer.text();
  if (mine !== designed) return;
  status.textContent = "";
  if (!answer.ok) return;
  const read = new DOMParser().parseFromString(text, "text/html");
  document.getElementById("said").replaceChildren(...read.body.childNodes);
}
if (design) {
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
