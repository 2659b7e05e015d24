// Keys: / searches; g and a letter opens a page of the navigation; Escape leaves a field.
const PAGES = { o: "/", t: "/topics", g: "/groups", d: "/dead-letters", c: "/clients", s: "/store" };
const SECONDS = 1;

export function listenToKeys() {
  const base = new URL(document.querySelector(".brand").href).pathname.replace(/\/$/, "");
  let since = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = event.target.matches("input, select, textarea");
    if (event.key === "Escape" && isTyping) event.target.blur();
    if (isTyping) return;
    const search = document.getElementById("search");
    if (event.key === "/" && search) {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (since && event.timeStamp - since < 1000 * SECONDS && PAGES[event.key]) {
      location.assign(base + PAGES[event.key]);
    }
    since = event.key === "g" && !since ? event.timeStamp : 0;
  });
}
