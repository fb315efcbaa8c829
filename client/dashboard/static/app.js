// What pages need beside htmx: ages that count on, the theme, the menu, copying, uploading a file of requests.
(() => {
  "use strict";

  const show = (seconds) => {
    if (seconds < 1) return "just now";
    if (seconds < 90) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s ago`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
    if (seconds < 172800) return `${Math.round(seconds / 3600)} h ago`;
    const days = seconds / 86400;
    return days < 730 ? `${Math.round(days)} days ago` : `${Math.round(days / 365.25)} years ago`;
  };

  // Ages are by the server's clock: what it said when the page was made, and how long that is ago here.
  const skew = Date.now() - Number(document.documentElement.dataset.now || Date.now());
  const tick = () => {
    const now = Date.now() - skew;
    for (const time of document.querySelectorAll("time.age[data-at]")) {
      const text = show(Math.max(0, now - Number(time.dataset.at)) / 1000);
      if (time.textContent !== text) time.textContent = text;
    }
    for (const clock of document.querySelectorAll("[data-until]")) {
      const left = Math.round((Number(clock.dataset.until) * 1000 - now) / 1000);
      clock.textContent = left > 0 ? `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}` : "run out";
    }
  };
  setInterval(tick, 1000);

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.matches("[data-theme-toggle]")) {
      const root = document.documentElement;
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      localStorage.setItem("headrace-theme", root.dataset.theme);
    } else if (button.matches("[data-menu]")) {
      const open = document.querySelector(".side").classList.toggle("open");
      button.setAttribute("aria-expanded", String(open));
    } else if (button.dataset.copy) {
      const text = document.getElementById(button.dataset.copy).textContent;
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(document.getElementById(button.dataset.copy));
        button.textContent = "Press Ctrl+C";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    }
  });

  const csrf = () => document.querySelector('meta[name="csrf-token"]')?.content ?? "";
  const problem = (form, text) => {
    const place = form.querySelector("[data-problem]");
    place.textContent = text;
    place.hidden = !text;
  };

  // A batch has one endpoint, and its lines name it: the first one says which.
  const endpointOf = async (file) => {
    const head = await file.slice(0, 65536).text();
    return /^[^\n]*"url"\s*:\s*"\/v1\/completions"/.test(head.trimStart()) ? "/v1/completions" : "/v1/chat/completions";
  };

  // The same two calls that a program makes: store the file, then begin the batch.
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches("[data-upload]")) return;
    event.preventDefault();
    const button = form.querySelector("button[type=submit]");
    button.disabled = true;
    problem(form, "");
    try {
      const content = new FormData();
      content.append("purpose", "batch");
      content.append("file", form.elements.file.files[0]);
      const file = await call("/api/v1/files", { method: "POST", body: content });
      const terms = { input_file_id: file.id, endpoint: await endpointOf(form.elements.file.files[0]), completion_window: "24h" };
      const batch = await call("/api/v1/batches", {
        method: "POST", body: JSON.stringify(terms), headers: { "content-type": "application/json" },
      });
      location.assign(`/jobs/${batch.id}`);
    } catch (error) {
      problem(form, error.message);
      button.disabled = false;
    }
  });

  const call = async (path, options) => {
    const headers = { ...options.headers, "x-csrf-token": csrf() };
    const response = await fetch(path, { ...options, headers });
    const found = await response.json().catch(() => ({}));
    if (!response.ok) throw new Error(found.error?.message ?? found.error?.what ?? `the gateway answered ${response.status}`);
    return found;
  };
  window.headrace = { call, csrf };
})();
