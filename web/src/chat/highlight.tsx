// Colours comments, strings, numbers and words of the language in code. It knows no grammar, so that
// it never fails and stays small.

import type { VNode } from 'preact';

const words = new Set(
  ('abstract and as async await auto bool boolean break byte case catch char class const constexpr continue def default del ' +
    'delete do double elif else enum except export extends extern false final finally float fn for from func function ' +
    'global go if impl implements import in include instanceof int interface is lambda let long match mod module mut ' +
    'namespace new nil None nonlocal not null nullptr of operator or override package pass private protected pub public ' +
    'raise ref return self short signed sizeof static struct super switch template this throw trait true True False try ' +
    'type typedef typename typeof union unsafe unsigned use using var virtual void volatile where while with yield ' +
    'select insert update delete from where group order by having join left inner on into values create table').split(' '),
);

const hash = '#[^\\n]*';
const slashes = '//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)';
const dashes = '--[^\\n]*';
const strings = '"(?:\\\\.|[^"\\\\\\n])*"?|\'(?:\\\\.|[^\'\\\\\\n])*\'?|`(?:\\\\.|[^`\\\\])*`?';

function pattern(language: string): RegExp {
  const comment = /^(py|python|rb|ruby|sh|bash|shell|zsh|yaml|yml|toml|make|makefile|r|perl)$/i.test(language)
    ? hash
    : /^(sql|lua|haskell|hs)$/i.test(language)
      ? dashes
      : slashes;
  return new RegExp(`(${comment})|(${strings})|\\b(\\d[\\w.]*)\\b|([A-Za-z_]\\w*)`, 'g');
}

export function highlight(text: string, language: string): (string | VNode)[] {
  if (!language || /^(text|txt|plain|md|markdown|output)$/i.test(language) || text.length > 100_000) return [text];
  const parts: (string | VNode)[] = [];
  let end = 0;
  for (const match of text.matchAll(pattern(language))) {
    const kind = match[1] ? 'c' : match[2] ? 's' : match[3] ? 'n' : words.has(match[4]!) ? 'k' : '';
    if (!kind) continue;
    if (match.index > end) parts.push(text.slice(end, match.index));
    parts.push(<span class={`hl-${kind}`}>{match[0]}</span>);
    end = match.index + match[0].length;
  }
  parts.push(text.slice(end));
  return parts;
}
