// Messages as they are stored, over server-sent events; the newest is on top.
import { clockOf } from "./times.js";

const COUNT_MAX = 500;

export function follow(list) {
  const state = document.querySelector("[data-tail-state]");
  const button = document.querySelector("[data-tail-toggle]");
  let source = null;
  let dropped = 0;

  function say(text) {
    state.textContent = dropped ? `${text}; ${dropped.toLocaleString("en")} left out, there were too many` : text;
  }

  function begin() {
    source = new EventSource(list.dataset.tail);
    button.textContent = "Stop";
    say("connecting");
    source.addEventListener("open", () => say("waiting for messages"));
    source.addEventListener("error", () => say(source.readyState === EventSource.CLOSED ? "ended" : "no answer, trying again"));
    source.addEventListener("refused", (event) => {
      end();
      say(JSON.parse(event.data).text);
    });
    source.addEventListener("messages", (event) => {
      const data = JSON.parse(event.data);
      dropped += data.dropped;
      for (const message of data.messages) list.prepend(row(message));
      while (list.children.length > COUNT_MAX) list.lastElementChild.remove();
      say(`live, ${list.children.length.toLocaleString("en")} shown`);
    });
  }

  function end() {
    source.close();
    source = null;
    button.textContent = "Follow";
    say("stopped");
  }

  button.hidden = false;
  button.addEventListener("click", () => (source ? end() : begin()));
  begin();
}

function row(message) {
  const item = document.createElement("li");
  const time = document.createElement("span");
  time.textContent = clockOf(new Date(message.stored));
  const place = document.createElement("a");
  place.className = "place";
  place.href = message.address;
  place.textContent = `${message.queue}:${message.offset}`;
  const tag = document.createElement("span");
  tag.className = "tag";
  tag.textContent = [message.tag, message.keys].filter(Boolean).join(" ");
  const text = document.createElement("span");
  text.className = "text";
  text.textContent = message.text;
  item.append(time, place, tag, text);
  return item;
}
