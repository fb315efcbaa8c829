// The chat: asks the gateway as a program would, shows the answer as it comes, then what it cost and who gave it.
(() => {
  "use strict";
  const form = document.querySelector("[data-chat]");
  if (!form) return;
  const talk = document.getElementById("talk");
  const send = form.querySelector("[data-send]");
  const stop = form.querySelector("[data-stop]");
  const box = form.elements.prompt;
  const messages = [];
  let running = null;

  // A base model has no chat template: it goes on from the text of all turns, as `client chat` has it.
  const kinds = new Map();
  const canChat = (model) => {
    if (!kinds.has(model)) {
      const asked = fetch(`/chat/models/${encodeURIComponent(model)}`)
        .then((response) => (response.ok ? response.json() : Promise.reject(new Error(response.status))))
        .then((found) => found.can_chat)
        .catch(() => { kinds.delete(model); return true; }); // what is wrong with the model, the gateway's answer says
      kinds.set(model, asked);
    }
    return kinds.get(model);
  };
  const base = form.querySelector("[data-base]");
  const showKind = async () => {
    const model = form.elements.model.value;
    const chats = !model || await canChat(model);
    if (form.elements.model.value !== model) return;
    base.hidden = chats;
    base.querySelector("[data-base-name]").textContent = model;
  };
  form.elements.model.addEventListener("change", showKind);
  showKind();

  const make = (tag, className, text = "") => {
    const element = document.createElement(tag);
    element.className = className;
    element.textContent = text;
    return element;
  };

  const say = (who, text) => {
    const bubble = make("div", `said ${who}`);
    const body = make("div", "text", text);
    bubble.append(make("span", "visually-hidden", who === "you" ? "You: " : "Model: "), body);
    talk.append(bubble);
    talk.scrollTop = talk.scrollHeight;
    return { bubble, body };
  };

  async function* events(response) {
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const blocks = rest.split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
        if (data) yield data;
      }
    }
  }

  const bill = async (bubble, receipt, begin, first, end, tokens) => {
    const line = make("div", "bill");
    bubble.append(line);
    const rate = tokens > 1 && end > first ? ((tokens - 1) * 1000) / (end - first) : null;
    line.append(make("span", "", `${tokens} tokens`));
    if (rate) line.append(make("span", "", `${rate.toFixed(1)} tok/s`));
    if (first) line.append(make("span", "", `first after ${((first - begin) / 1000).toFixed(2)} s`));
    if (!receipt) return;
    // The bill is made by the server, from the receipt: cost, route, link, and the button that checks the answer.
    const response = await fetch(`/receipts/${receipt}/line`, { headers: { accept: "text/html" } });
    if (response.ok) {
      const part = make("span", "row");
      part.innerHTML = await response.text();
      line.append(part);
      window.htmx.process(part);
      talk.scrollTop = talk.scrollHeight;
    }
  };

  const ask = async (prompt) => {
    messages.push({ role: "user", content: prompt });
    say("you", prompt);
    const { bubble, body } = say("model", "");
    bubble.classList.add("waiting");
    const turns = form.elements.system.value ? [{ role: "system", content: form.elements.system.value }, ...messages] : messages;
    const request = {
      model: form.elements.model.value, stream: true, stream_options: { include_usage: true },
      max_tokens: Number(form.elements.max_tokens.value), temperature: Number(form.elements.temperature.value),
    };
    running = new AbortController();
    const begin = performance.now();
    let first = 0, last = begin, tokens = 0, text = "", receipt = "";
    try {
      const chats = await canChat(request.model);
      if (!chats) bubble.prepend(make("span", "tag", "goes on from your text"));
      const asked = chats ? { messages: turns } : { prompt: turns.map((turn) => turn.content).join("\n") };
      const response = await fetch(chats ? "/api/v1/chat/completions" : "/api/v1/completions", {
        method: "POST", body: JSON.stringify({ ...request, ...asked }), signal: running.signal,
        headers: { "content-type": "application/json", "x-csrf-token": window.headrace.csrf() },
      });
      receipt = response.headers.get("x-receipt-id") ?? "";
      if (!response.ok) {
        const found = await response.json().catch(() => ({}));
        throw new Error(found.error?.message ?? `the gateway answered ${response.status}`);
      }
      for await (const data of events(response)) {
        if (data === "[DONE]") break;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        const piece = chunk.choices?.[0]?.delta?.content ?? chunk.choices?.[0]?.text ?? "";
        if (piece) {
          last = performance.now();
          first ||= last;
          bubble.classList.replace("waiting", "streaming");
          text += piece;
          body.textContent = text;
          talk.scrollTop = talk.scrollHeight;
        }
        if (chunk.usage) tokens = chunk.usage.completion_tokens;
      }
      if (!text) body.append(make("span", "muted", "(no text)"));
    } catch (error) {
      const stopped = error.name === "AbortError";
      bubble.append(make("div", `notice ${stopped ? "plain" : "bad"}`, stopped ? "Stopped. What was delivered is paid." : error.message));
    } finally {
      bubble.classList.remove("waiting", "streaming");
      running = null;
    }
    if (text) messages.push({ role: "assistant", content: text });
    else messages.pop();
    await bill(bubble, receipt, begin, first, last, tokens);
  };

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const prompt = box.value.trim();
    if (!prompt || running) return;
    box.value = "";
    send.hidden = true;
    stop.hidden = false;
    document.getElementById("hello")?.remove();
    await ask(prompt);
    send.hidden = false;
    stop.hidden = true;
    box.focus();
  });
  for (const example of document.querySelectorAll("[data-example]")) {
    example.addEventListener("click", () => {
      box.value = example.textContent;
      form.requestSubmit();
    });
  }
  stop.addEventListener("click", () => running?.abort());
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  form.querySelector("[data-new]").addEventListener("click", () => {
    running?.abort();
    messages.length = 0;
    talk.replaceChildren();
    box.focus();
  });
})();
