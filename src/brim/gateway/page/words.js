// Numbers, money and times as people read them. What is not known is a dash, and never 0.

export const UNKNOWN = "–";

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const clock = new Intl.DateTimeFormat("en-GB", {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const moment = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export const sum = (rows, of) => rows.reduce((total, row) => total + of(row), 0);
export const largest = (rows, of) => rows.reduce((most, row) => Math.max(most, of(row)), 0);

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
  return (
    "$" +
    value.toLocaleString("en", {
      minimumFractionDigits: Math.min(digits, 4),
      maximumFractionDigits: digits,
    })
  );
}

/** The same for sums that stand under each other: cents, unless there are none. */
export const cents = (value) =>
  isKnown(value) && Math.abs(value) >= 0.01
    ? "$" + value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })
    : money(value);

export const amount = (value, unit) => (unit === "dollars" ? cents(value) : brief(value));

export const percent = (part, all) =>
  isKnown(part) && isKnown(all) && all > 0 ? `${Math.round((100 * part) / all)} %` : UNKNOWN;

export function seconds(value) {
  if (!isKnown(value)) return UNKNOWN;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  return lasting(value);
}

/** A time in its two largest units; seconds only where there are no hours. */
export function lasting(value) {
  const left = Math.max(0, Math.round(value));
  const [days, hours, minutes, rest] = [
    Math.floor(left / 86_400),
    Math.floor(left / 3_600) % 24,
    Math.floor(left / 60) % 60,
    left % 60,
  ];
  if (days) return `${days} d${hours ? ` ${hours} h` : ""}`;
  if (hours) return `${hours} h${minutes ? ` ${minutes} min` : ""}`;
  return minutes ? `${minutes} min${rest ? ` ${rest} s` : ""}` : `${rest} s`;
}

export const atTime = (value) => clock.format(new Date(value * 1000));
export const atMoment = (value) => moment.format(new Date(value * 1000));
export const onDay = (iso) => day.format(new Date(`${iso}T12:00:00`));
export const number = (count, one, many = `${one}s`) =>
  `${whole.format(count)} ${count === 1 ? one : many}`;

/** `clipped 3, dropped 14` */
export const cuts = (cut) =>
  Object.entries(cut ?? {})
    .map(([fate, count]) => `${fate} ${whole.format(count)}`)
    .join(", ");
