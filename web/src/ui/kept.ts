// What the browser keeps for this page. A browser that forbids that keeps it in memory.

const memory = new Map<string, string>();

function tried<T>(act: () => T, otherwise: () => T): T {
  try {
    return act();
  } catch {
    return otherwise();
  }
}

class Kept {
  constructor(private readonly area: () => Storage) {}
  get(name: string): string | null {
    return tried(() => this.area().getItem(name), () => memory.get(name) ?? null);
  }
  set(name: string, value: string): void {
    tried(() => this.area().setItem(name, value), () => void memory.set(name, value));
  }
  remove(name: string): void {
    tried(() => this.area().removeItem(name), () => void memory.delete(name));
  }
}

export const forever = new Kept(() => localStorage);
export const inThisTab = new Kept(() => sessionStorage);
