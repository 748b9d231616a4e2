// Keeps a page up to date: listens for changes, notifies the parts of the page that depend on them (htmx fetches those
// again), and shows when the connection is lost and when it is back. Every form and link works without this script.
"use strict";
(() => {
  const topics = document.body.dataset.topics.split(" ");
  const SILENCE_MS = 25000; // The server sends a beat every ten seconds.
  const FIRST_WAIT_MS = 500;
  const LONGEST_WAIT_MS = 5000;

  const status = document.getElementById("connection");
  let lost = false;
  let wait = FIRST_WAIT_MS;
  let stream = null;
  let silence = 0;

  const say = (state, text) => {
    if (status.dataset.state === state) return;
    status.dataset.state = state;
    status.textContent = text;
  };

  const refresh = (changed) => {
    for (const topic of changed) document.body.dispatchEvent(new CustomEvent("changed-" + topic));
  };

  // What a person asks for (the next page of a list, a search) comes before a refresh of the same part, whose answer would put
  // back what was there. A refresh under way is ended. One that becomes due meanwhile follows the answer.
  const asked = new WeakMap(); // For each part of the page, htmx's record of the last request of a person.
  const isUnderWay = (request) => request?.status === "issuing" || request?.status === "response received";
  document.body.addEventListener("htmx:before:request", (event) => {
    const request = event.detail.ctx;
    const before = asked.get(request.target);
    if (request.sourceElement !== request.target) {
      asked.set(request.target, request);
      request.target.dispatchEvent(new Event("htmx:abort"));
    } else if (isUnderWay(before)) {
      before.refreshDue = true;
      event.preventDefault();
    }
  });
  document.body.addEventListener("htmx:after:swap", (event) => {
    const request = event.detail.ctx;
    if (asked.get(request.target) === request) asked.delete(request.target);
    if (request.refreshDue) refresh(topics);
  });

  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(lose, SILENCE_MS);
  };

  const lose = () => {
    clearTimeout(silence);
    stream.close();
    lost = true;
    say("lost", "Connection lost, trying again");
    setTimeout(connect, wait);
    wait = Math.min(wait * 2, LONGEST_WAIT_MS);
  };

  const connect = () => {
    stream = new EventSource("/page/events");
    stream.addEventListener("hello", (event) => {
      heard();
      wait = FIRST_WAIT_MS;
      if (lost) {
        lost = false;
        say("back", "Connection is back");
        refresh(topics); // Changes in between were missed.
      } else {
        say("live", "Live");
        if (event.data !== document.body.dataset.seen) refresh(topics); // Something changed after the page was rendered.
      }
    });
    stream.addEventListener("beat", () => {
      heard();
      say("live", "Live");
    });
    stream.addEventListener("changed", (event) => {
      heard();
      refresh(event.data.split(" "));
    });
    stream.onerror = lose;
  };

  // Asks before a changed text that was not sent is thrown away.
  const guardText = (text) => {
    let sent = false;
    const form = text.form;
    form.addEventListener("submit", () => {
      sent = true;
    });
    text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    const refused = text.getAttribute("aria-invalid") === "true";
    addEventListener("beforeunload", (event) => {
      if (!sent && (refused || text.value !== text.defaultValue)) event.preventDefault();
    });
  };

  // A menu closes with Escape, and with a click elsewhere.
  const menu = document.querySelector("details.menu");
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && menu?.open) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
  document.addEventListener("click", (event) => {
    if (menu && !menu.contains(event.target)) menu.open = false;
  });

  document.documentElement.classList.add("script");
  document.querySelectorAll("form.editor textarea").forEach(guardText);
  connect();
})();
