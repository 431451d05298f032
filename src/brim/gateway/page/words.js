// Numbers, money and times as people read them. What is not known is a dash, and never 0.

export const UNKNOWN = "–";

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const moment = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

const isKnown = (value) => typeof value === "number" && Number.isFinite(value);

export const tokens = (value) => (isKnown(value) ? whole.format(value) : UNKNOWN);

/** Few signs for large numbers, all digits for small ones. */
export const brief = (value) =>
  !isKnown(value) ? UNKNOWN : value < 100_000 ? whole.format(value) : short.format(value);

/** At least three digits that say something, for a millionth of a dollar as for thousands. */
export function money(value) {
  if (!isKnown(value)) return UNKNOWN;
  if (value === 0) return "$0";
  const size = Math.abs(value);
  const digits = size >= 1 ? 2 : size >= 0.01 ? 4 : 6;
  return "$" + value.toLocaleString("en", { minimumFractionDigits: Math.min(digits, 4), maximumFractionDigits: digits });
}

export const amount = (value, unit) => (unit === "dollars" ? money(value) : brief(value));

export const percent = (part, all) =>
  isKnown(part) && isKnown(all) && all > 0 ? `${Math.round((100 * part) / all)} %` : UNKNOWN;

export function seconds(value) {
  if (!isKnown(value)) return UNKNOWN;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  return lasting(value);
}

/** A time that is left, in its two largest units. */
export function lasting(value) {
  const parts = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  const first = Math.max(0, parts.findIndex(([, size]) => value >= size));
  let left = value;
  return parts.slice(first, first + 2).map(([name, size]) => {
    const number = Math.floor(left / size);
    left -= number * size;
    return number ? `${number} ${name}` : "";
  }).filter(Boolean).join(" ") || "now";
}

export const atTime = (value) => clock.format(new Date(value * 1000));
export const atMoment = (value) => moment.format(new Date(value * 1000));
export const onDay = (iso) => day.format(new Date(`${iso}T12:00:00`));
export const isToday = (value) => new Date(value * 1000).toDateString() === new Date().toDateString();
export const number = (count, one, many = `${one}s`) => `${whole.format(count)} ${count === 1 ? one : many}`;

/** `clipped 3, dropped 14` */
export const cuts = (cut) =>
  Object.entries(cut ?? {}).map(([fate, count]) => `${fate} ${whole.format(count)}`).join(", ");
