// Shows what a model wrote. A model's text is hostile input: it becomes a fixed set of elements
// without scripts, styles, forms or anything that loads from a network.

import DOMPurify from 'dompurify';
import { marked, Renderer, type Token, type Tokens } from 'marked';
import { memo } from './memo';
import { useState } from 'preact/hooks';
import { copyText, Icon } from '../ui/parts';
import { highlight } from './highlight';

const renderer = new Renderer();
// A link shows where it leads; an image becomes a link, so that nothing is loaded unasked.
renderer.image = ({ href, text }) => `<a href="${escape(href)}">${escape(text || 'image')} (image)</a>`;
renderer.html = ({ text }) => escape(text);
renderer.checkbox = ({ checked }) => (checked ? '☑ ' : '☐ ');
marked.use({ renderer, gfm: true, breaks: true });

const allowed = {
  ALLOWED_TAGS: [
    'p', 'br', 'strong', 'em', 'del', 'code', 'pre', 'blockquote', 'hr', 'a', 'ul', 'ol', 'li',
    'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'table', 'thead', 'tbody', 'tr', 'th', 'td',
  ],
  ALLOWED_ATTR: ['href', 'start', 'align', 'title'],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  RETURN_TRUSTED_TYPE: true as const,
};
DOMPurify.addHook('afterSanitizeAttributes', (node) => {
  if (node.tagName !== 'A') return;
  if (!node.hasAttribute('href')) return;
  node.setAttribute('target', '_blank');
  node.setAttribute('rel', 'noopener noreferrer nofollow');
  node.setAttribute('title', node.getAttribute('href')!);
});

function escape(text: string): string {
  return text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

/** Returns safe HTML of one block of Markdown. */
export function safeHtml(block: Token[]): string {
  return DOMPurify.sanitize(marked.parser(block), allowed) as unknown as string;
}

const Block = memo(
  ({ block }: { raw: string; block: Token }) => <div dangerouslySetInnerHTML={{ __html: safeHtml([block]) }} />,
  (a, b) => a.raw === b.raw,
);

const Code = memo(
  ({ text, language }: { text: string; language: string }) => {
    const [copied, setCopied] = useState(false);
    return (
      <figure class="code">
        <figcaption>
          <span>{language || 'text'}</span>
          <button
            type="button"
            onClick={() => void copyText(text).then(() => { setCopied(true); setTimeout(() => setCopied(false), 1500); })}
          >
            <Icon name="copy" />
            {copied ? 'Copied' : 'Copy'}
          </button>
        </figcaption>
        <pre tabIndex={0}><code>{highlight(text, language)}</code></pre>
      </figure>
    );
  },
  (a, b) => a.text === b.text && a.language === b.language,
);

/** The blocks of a text, or nothing if it nests so deep that reading it as Markdown would stall or fail. */
function blocksOf(text: string): Token[] | undefined {
  if (/^(?:[ \t]*>){100}/m.test(text)) return undefined;
  try {
    return marked.lexer(text);
  } catch {
    return undefined;
  }
}

/** While an answer streams, only its last block changes; the others are kept. */
export function Markdown({ text }: { text: string }) {
  const blocks = blocksOf(text);
  if (!blocks) return <pre class="prose">{text}</pre>;
  return (
    <div class="prose">
      {blocks.map((block, i) =>
        block.type === 'code' ? (
          <Code key={i} text={(block as Tokens.Code).text} language={((block as Tokens.Code).lang ?? '').split(/\s/)[0]!} />
        ) : block.type === 'space' ? null : (
          <Block key={i} raw={block.raw} block={block} />
        ),
      )}
    </div>
  );
}
