// SPDX-License-Identifier: Apache-2.0
// Comfort only: every page works without it.
"use strict";

const byId = (id) => document.getElementById(id);

// -- the theme ---------------------------------------------------------------------------------

function themeButton() {
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const now = () => document.documentElement.dataset.theme || (system.matches ? "dark" : "light");
  const name = () => { button.textContent = now() === "dark" ? "Light" : "Dark"; };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = now() === "dark" ? "light" : "dark";
    try { localStorage.setItem("cometmq-theme", now()); } catch { /* for this page only */ }
    name();
  });
  system.addEventListener("change", name);
  name();
  button.hidden = false;
}

// -- live pages: fetch the same address, and replace the content ---------------------------------

let timer = 0;
let isRenewing = false; // a busy machine may answer later than the next renewal is due

function isBusy() {
  const at = document.activeElement;
  const isTyping = at && at.closest("main") && /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName);
  return document.hidden || isTyping || String(getSelection()).length > 0
    || document.querySelector("main form:not(.filter) input[type=checkbox]:checked");
}

async function renew() {
  if (isRenewing || isBusy()) return;
  isRenewing = true;
  try {
    const answer = await fetch(location.href, {
      headers: { Accept: "text/html" }, signal: AbortSignal.timeout(60_000),
    });
    if (answer.redirected) { location.reload(); return; } // the session has ended: to the login
    if (!answer.ok) throw new Error(answer.statusText);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (isBusy()) return;
    const focused = document.activeElement && document.activeElement.getAttribute("href");
    const lefts = [...document.querySelectorAll("main .scroll")].map((it) => it.scrollLeft);
    const open = [...document.querySelectorAll("main details[open][id]")].map((it) => it.id);
    for (const part of ["main", "footer"]) {
      document.querySelector(part).innerHTML = fresh.querySelector(part).innerHTML;
    }
    document.querySelectorAll("main .scroll").forEach((it, at) => { it.scrollLeft = lefts[at] || 0; });
    for (const id of open) { if (byId(id)) byId(id).open = true; }
    if (focused) {
      const same = document.querySelector(`[href="${CSS.escape(focused)}"]`);
      if (same) same.focus({ preventScroll: true });
    }
    document.body.classList.remove("lost");
    bind();
  } catch {
    document.body.classList.add("lost");
  } finally {
    isRenewing = false;
  }
}

function refreshButton() {
  const seconds = Number(document.body.dataset.refresh);
  if (!seconds) return;
  const button = byId("refresh");
  const key = "cometmq-live";
  const set = (isOn) => {
    clearInterval(timer);
    if (isOn) timer = setInterval(renew, seconds * 1000);
    button.setAttribute("aria-pressed", String(isOn));
    button.title = `Renew this page every ${seconds} s (key r)`;
    try { sessionStorage.setItem(key, isOn ? "1" : ""); } catch { /* for this page only */ }
  };
  button.addEventListener("click", () => set(button.getAttribute("aria-pressed") !== "true"));
  let wasOn = "";
  try { wasOn = sessionStorage.getItem(key) || ""; } catch { /* off */ }
  set(wasOn === "1");
  button.hidden = false;
}

// -- what the content of a page needs ------------------------------------------------------------

function bind() {
  for (const code of document.querySelectorAll("code.command")) {
    if (!navigator.clipboard || code.nextElementSibling?.className === "copy") continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    });
    code.after(button);
  }
  for (const plot of document.querySelectorAll("figure.card")) plot.scrollLeft = plot.scrollWidth;
  for (const box of document.querySelectorAll("input[data-all]")) {
    box.addEventListener("change", () => {
      for (const one of document.getElementsByName(box.dataset.all)) one.checked = box.checked;
    });
  }
  for (const chooser of document.querySelectorAll("input[data-into]")) {
    chooser.closest("label").hidden = false;
    chooser.addEventListener("change", async () => {
      const [file] = chooser.files;
      if (file) document.getElementsByName(chooser.dataset.into)[0].value = await file.text();
    });
  }
  for (const select of document.querySelectorAll("form.filter select")) {
    select.addEventListener("change", () => select.form.requestSubmit());
  }
  for (const button of document.querySelectorAll("button[data-busy]")) {
    button.form.addEventListener("submit", (event) => {
      if (event.submitter === button) setTimeout(() => { button.disabled = true; button.textContent = button.dataset.busy; });
    });
  }
}

// -- keys ----------------------------------------------------------------------------------------

document.addEventListener("keydown", (event) => {
  const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  // A browser submits a form by its first button, and the first one only shows the plan again.
  if (event.key === "Enter" && event.target.matches(".plan input")) {
    event.preventDefault();
    event.target.form.requestSubmit(document.querySelector(".plan button"));
  }
  if (isTyping) return;
  if (event.key === "/") {
    const field = document.querySelector("[data-key='/']");
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  } else if (event.key === "r") {
    byId("refresh").click();
  }
});

// On a phone, the menu is a row that is wider than the window.
function showEntry() {
  const entry = document.querySelector(".menu [aria-current]");
  const menu = document.querySelector(".menu");
  if (entry) menu.scrollLeft += entry.getBoundingClientRect().left - menu.clientWidth / 3;
}

// What runs now is followed without being asked.
setInterval(() => { if (document.querySelector("main [data-live]")) renew(); }, 1000);

themeButton();
refreshButton();
bind();
showEntry();
