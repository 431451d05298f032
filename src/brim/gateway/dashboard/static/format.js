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
const minute = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const date = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium" });
const moment = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export const sum = (rows, of) => rows.reduce((total, row) => total + of(row), 0);
export const largest = (rows, of) => rows.reduce((most, row) => Math.max(most, of(row)), 0);

const isKnown = (value) => typeof value === "number" && Number.isFinite(value);

export const tokens = (value) => (isKnown(value) ? whole.format(value) : UNKNOWN);

/** Large numbers abbreviated, small ones in full. */
export const brief = (value) =>
  !isKnown(value) ? UNKNOWN : value < 100_000 ? whole.format(value) : short.format(value);

const dollars = (value, least, most = least) =>
  "$" + value.toLocaleString("en", { minimumFractionDigits: least, maximumFractionDigits: most });

/** The significant digits of any amount, from micro-dollars to thousands. */
export function money(value) {
  if (!isKnown(value)) return UNKNOWN;
  if (value === 0) return "$0";
  const size = Math.abs(value);
  if (size >= 0.01) return dollars(value, size >= 1 ? 2 : 4);
  return dollars(value, 4, Math.max(6, 1 - Math.floor(Math.log10(size))));
}

/** The same for columns of sums: cents, unless the amount is lower. */
export const cents = (value) =>
  isKnown(value) && Math.abs(value) >= 0.01 ? dollars(value, 2) : money(value);

export const amount = (value, unit) => (unit === "dollars" ? cents(value) : brief(value));

/** A part of a total, not rounded to zero or to the total. */
export function portion(part, all, unit) {
  if (part === 0 || part === all) return amount(part, unit);
  const isTrue = (read) => read !== 0 && read !== all;
  if (unit === "dollars") {
    return dollars(part, [2, 4].find((digits) => isTrue(Number(part.toFixed(digits)))) ?? 6);
  }
  return isTrue(Number(part.toPrecision(3))) ? brief(part) : tokens(part);
}

/** The same in percent. */
export function percent(part, all) {
  if (!isKnown(part) || !isKnown(all) || all <= 0) return UNKNOWN;
  const read = Math.round((100 * part) / all);
  if (read === 0 && part > 0) return "< 1 %";
  if (read === 100 && part !== all) return part < all ? "> 99 %" : "> 100 %";
  return `${read} %`;
}

export function seconds(value) {
  if (!isKnown(value)) return UNKNOWN;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  return lasting(value);
}

/** A duration in its two largest units; seconds only below one hour. */
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
/** A time on an axis: with seconds for the shortest spans, and only the day for the longest. */
export function atMinute(value, span) {
  const date = new Date(value * 1000);
  if (span === 0) return atMoment(value).replace(/:\d\d$/, "");
  return span > 3 * 86_400 ? day.format(date) : minute.format(date);
}
/** A day and a time without seconds. */
export const atRecent = (value) => `${day.format(new Date(value * 1000))}, ${minute.format(new Date(value * 1000))}`;
export const atDay = (value) => date.format(new Date(value * 1000));
export const onDay = (iso) => day.format(new Date(`${iso}T12:00:00`));
export const number = (count, one, many = `${one}s`) =>
  `${whole.format(count)} ${count === 1 ? one : many}`;

/** `clipped 3, dropped 14` */
export const outcomes = (counts) =>
  Object.entries(counts ?? {})
    .map(([outcome, count]) => `${outcome} ${whole.format(count)}`)
    .join(", ");
