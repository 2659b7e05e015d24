// Times come in UTC and are shown in the zone of the reader.
const two = (number) => String(number).padStart(2, "0");

export function clockOf(moment) {
  const thousandths = String(moment.getMilliseconds()).padStart(3, "0");
  return `${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}.${thousandths}`;
}

export function showLocalTimes(part) {
  for (const element of part.querySelectorAll("time[data-form]")) {
    const moment = new Date(element.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    const day = `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())}`;
    const clock = clockOf(moment);
    element.title = `${day} ${clock} here, ${element.dateTime.replace("T", " ").replace("Z", "")} UTC`;
    if (element.dataset.form === "full") element.textContent = `${day} ${clock}`;
    if (element.dataset.form === "time") element.textContent = clock;
  }
}
