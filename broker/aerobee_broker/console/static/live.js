// Parts marked with data-live are asked for again every few seconds, while somebody looks at the page.
const SECONDS = 5;
const FAILED_SECONDS = 2; // after a first failure; twice as long after each further one
const FAILED_SECONDS_MAX = 30;
const STORED = "aerobee-paused";

export function keepFresh(prepare) {
  const state = document.querySelector("[data-live-state]");
  if (!state || !document.querySelector("[data-live]")) return;
  const text = state.querySelector("[data-live-text]");
  const button = state.querySelector("[data-live-toggle]");
  let paused = localStorage.getItem(STORED) === "1";
  let failures = 0;
  let timer = 0;

  function say() {
    state.hidden = false;
    state.classList.toggle("paused", paused);
    state.classList.toggle("broken", failures > 0 && !paused);
    button.textContent = paused ? "Continue" : "Pause";
    text.textContent = paused ? "paused" : failures ? "no answer, trying again" : "live";
  }

  function plan() {
    clearTimeout(timer);
    if (paused || document.hidden) return;
    const delay = failures ? Math.min(FAILED_SECONDS * 2 ** (failures - 1), FAILED_SECONDS_MAX) : SECONDS;
    timer = setTimeout(refresh, 1000 * delay);
  }

  async function refresh() {
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (answer.redirected) return location.reload(); // the session is over
      if (!answer.ok) throw new Error(answer.statusText);
      replace(new DOMParser().parseFromString(await answer.text(), "text/html"), prepare);
      failures = 0;
    } catch {
      failures += 1;
    }
    say();
    plan();
  }

  button.addEventListener("click", () => {
    paused = !paused;
    localStorage.setItem(STORED, paused ? "1" : "0");
    say();
    if (paused) plan();
    else refresh();
  });
  document.addEventListener("visibilitychange", plan);
  say();
  plan();
}

function replace(page, prepare) {
  for (const old of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(old.id);
    if (!fresh || isInUse(old)) continue;
    const focused = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    old.replaceWith(document.adoptNode(fresh));
    prepare(fresh);
    if (focused) fresh.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
  }
}

// Somebody types, has marked something or opened a form here: it stays as it is.
function isInUse(part) {
  const selection = getSelection();
  return (
    part.querySelector("details[open], input:checked, .hover:not([hidden])") !== null ||
    (part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea, button")) ||
    (selection !== null && !selection.isCollapsed && part.contains(selection.anchorNode))
  );
}

// A page that could not be made asks until it can.
export function retry() {
  const failure = document.querySelector("[data-retry]");
  if (!failure) return;
  const again = async () => {
    try {
      const answer = await fetch(location.href);
      if (answer.ok || answer.status < 429) return location.reload();
    } catch {
      // the console itself is away
    }
    setTimeout(again, 1000 * Number(failure.dataset.retry));
  };
  setTimeout(again, 1000 * Number(failure.dataset.retry));
}
