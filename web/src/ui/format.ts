// Numbers and times for people.

const plain = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

export function count(value: number): string {
  return plain.format(value);
}

/** Three significant digits at most, without an exponent. */
export function short(value: number): string {
  if (!Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(size >= 1e7 ? 0 : 1)}M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(size >= 1e5 ? 0 : 1)}k`;
  if (size >= 100 || Number.isInteger(value)) return plain.format(value);
  return value.toFixed(size >= 10 ? 1 : size >= 1 ? 2 : size >= 0.01 ? 3 : 4).replace(/\.?0+$/, '');
}

export function seconds(value: number): string {
  if (!Number.isFinite(value)) return '–';
  if (value === 0) return '0';
  if (value < 0.0995) return `${(value * 1e3).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 0.9995) return `${(value * 1e3).toFixed(0)} ms`;
  if (value < 99.5) return `${value.toFixed(value < 9.95 ? 2 : 1)} s`;
  return duration(value);
}

export function duration(value: number): string {
  const whole = Math.round(value);
  if (whole < 100) return `${whole} s`;
  if (whole < 6000) return `${Math.round(whole / 60)} min`;
  if (whole < 172_800) return `${(whole / 3600).toFixed(1)} h`;
  return `${(whole / 86_400).toFixed(1)} d`;
}

export function bytes(value: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  let size = value;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    ++unit;
  }
  return `${size.toFixed(size >= 100 || unit === 0 ? 0 : size >= 10 ? 1 : 2)} ${units[unit]}`;
}

export function clock(unixSeconds: number): string {
  return new Date(unixSeconds * 1000).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false });
}

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}
