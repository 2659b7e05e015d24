// What pages do beyond their links and forms. Everything works without it, except the live tail.
import { prepareCharts } from "./charts.js";
import { listenToKeys } from "./keys.js";
import { keepFresh, retry } from "./live.js";
import { prepareSelections } from "./selections.js";
import { prepareTables } from "./tables.js";
import { showLocalTimes } from "./times.js";

// A part of the page is new: at first the whole page, then each part that was asked for again.
export function prepare(part) {
  showLocalTimes(part);
  prepareTables(part);
  prepareCharts(part);
  prepareSelections(part);
}

prepare(document);
listenToKeys();
keepFresh(prepare);
retry();
const tail = document.querySelector("[data-tail]");
if (tail) {
  const { follow } = await import("./tail.js");
  follow(tail);
}
