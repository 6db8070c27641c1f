// Light, dark, or what the system says.

import { forever } from './kept';

export type Theme = 'system' | 'light' | 'dark';
const name = 'protean-theme';

export function theme(): Theme {
  const kept = forever.get(name);
  return kept === 'light' || kept === 'dark' ? kept : 'system';
}

export function useTheme(wanted: Theme): void {
  if (wanted === 'system') {
    forever.remove(name);
    delete document.documentElement.dataset.theme;
  } else {
    forever.set(name, wanted);
    document.documentElement.dataset.theme = wanted;
  }
  window.dispatchEvent(new Event('themechange'));
}

/** Returns the theme after this one, for a button that goes through all. */
export function nextTheme(now: Theme): Theme {
  return now === 'system' ? 'light' : now === 'light' ? 'dark' : 'system';
}
