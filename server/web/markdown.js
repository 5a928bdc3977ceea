// Markdown to DOM nodes. What the model wrote only ever becomes text nodes and a fixed set of elements: no markup of its
// own, no attributes but href of http(s) and mailto links, and those that parseMath gives to formulas.
import {copyButton, element} from './dom.js';
import {pieces} from './highlight.js';
import {parseMath} from './math.js';

const kDeepest = 8;  // lists and quotes inside each other
const kSpanPiece = 4000;  // characters that spans are looked for in at once: the search may be quadratic
const kHighlighted = 100_000;  // characters of code; longer code stays black
const kMathSpace = 'http://www.w3.org/1998/Math/MathML';

function link(text, target) {
  let url;
  try { url = new URL(target); } catch { return text; }
  if (!['http:', 'https:', 'mailto:'].includes(url.protocol)) return text;
  return element('a', {href: url.href, target: '_blank', rel: 'noopener noreferrer', title: url.href}, text);
}

function mathNode(tree) {
  if (typeof tree === 'string') return document.createTextNode(tree);
  const [name, attributes, ...children] = tree;
  const node = document.createElementNS(kMathSpace, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.map(mathNode));
  return node;
}

function formula(text, display, source) {
  const tree = parseMath(text, display);
  if (!tree) return element('code', {}, source);
  const node = mathNode(tree);
  node.setAttribute('aria-label', text);
  return node;
}

// In the order in which they are tried at each place; the first match from the left wins.
const kSpans = [
  [/\\([\\`*_{}#+.!|~$<>-])/g, m => m[1]],
  [/(`+)([\s\S]*?[^`])\1(?!`)/g, m => element('code', {}, m[2].trim())],
  [/\$\$([^$]+?)\$\$/g, m => formula(m[1], true, m[0])],
  [/\\\[([\s\S]+?)\\\]/g, m => formula(m[1], true, m[0])],
  [/\\\(([\s\S]+?)\\\)/g, m => formula(m[1], false, m[0])],
  // Dollars are money unless they hug what is between them and no digit follows.
  [/\$(?=[^\s$])([^$\n]*?[^\s$\\])\$(?![\d\w])/g, m => formula(m[1], false, m[0])],
  [/!?\[([^\]\n]{1,500})\]\(([^()\s]{1,2000})\)/g, m => link(m[1], m[2])],
  [/https?:\/\/[^\s<>"')\]]{1,2000}/g, m => link(m[0], m[0])],
  [/\*\*(?=\S)([^\n]*?\S)\*\*/g, m => element('strong', {}, ...spans(m[1]))],
  [/\*(?=[^\s*])([^*\n]*[^\s*])\*/g, m => element('em', {}, ...spans(m[1]))],
  [/(?<!\w)__(?=\S)([^\n]*?\S)__(?!\w)/g, m => element('strong', {}, ...spans(m[1]))],
  [/(?<!\w)_(?=[^\s_])([^_\n]*[^\s_])_(?!\w)/g, m => element('em', {}, ...spans(m[1]))],
  [/~~(?=\S)([^\n]*?\S)~~/g, m => element('del', {}, ...spans(m[1]))],
];

// Every pattern is searched for once, and again only when the text has been taken beyond what it found.
function spans(text) {
  const found = kSpans.map(() => undefined);
  const nodes = [];
  let at = 0;
  for (;;) {
    let best = null;
    kSpans.forEach(([pattern], i) => {
      if (found[i] === undefined || (found[i] && found[i].from < at)) {
        pattern.lastIndex = at;
        const match = pattern.exec(text);
        found[i] = match && {match, from: match.index, make: kSpans[i][1]};
      }
      if (found[i] && (!best || found[i].from < best.from)) best = found[i];
    });
    if (!best) break;
    if (best.from > at) nodes.push(text.slice(at, best.from));
    nodes.push(best.make(best.match));
    at = best.from + best.match[0].length;
  }
  if (at < text.length) nodes.push(text.slice(at));
  return nodes;
}

// Long texts are cut at spaces.
function inline(text) {
  const nodes = [];
  while (text.length > kSpanPiece) {
    const space = text.lastIndexOf(' ', kSpanPiece);
    const end = space > 0 ? space : kSpanPiece;
    nodes.push(...spans(text.slice(0, end)));
    text = text.slice(end);
  }
  nodes.push(...spans(text));
  return nodes;
}

export function colored(text, language) {
  if (text.length > kHighlighted) return [text];
  return pieces(text, language).map(([kind, piece]) => kind ? element('span', {class: 'hl-' + kind}, piece) : piece);
}

export function codeBlock(text, language) {
  const code = element('code', {}, ...colored(text, language));
  return element('div', {class: 'code'},
    element('div', {class: 'code-head'}, element('span', {}, language), copyButton(() => text)),
    element('pre', {tabindex: '0', 'aria-label': language ? `Code, ${language}` : 'Code'}, code));
}

const cells = line => line.trim().replace(/^\||\|$/g, '').split(/(?<!\\)\|/).map(cell => cell.trim().replaceAll('\\|', '|'));

function table(lines) {
  const sides = cells(lines[1]).map(cell => (cell.endsWith(':') ? (cell.startsWith(':') ? 'center' : 'right') : null));
  const row = (line, name) => element('tr', {}, ...cells(line).map((cell, i) =>
    element(name, {class: sides[i] ? 'to-' + sides[i] : null, scope: name === 'th' ? 'col' : null}, ...inline(cell))));
  return element('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Table'},
    element('table', {}, element('thead', {}, row(lines[0], 'th')),
      element('tbody', {}, ...lines.slice(2).map(line => row(line, 'td')))));
}

const kItem = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const indentOf = line => /^\s*/.exec(line)[0].length;

// Items of one depth, with deeper ones as lists inside.
function list(lines, depth) {
  const first = kItem.exec(lines[0]);
  const ordered = /\d/.test(first[2]);
  const root = ordered ? element('ol', {start: parseInt(first[2], 10)}) : element('ul');
  const indent = first[1].length;
  for (let i = 0; i < lines.length;) {
    const match = kItem.exec(lines[i]);
    const end = takeWhile(lines, i + 1, line => {
      const next = kItem.exec(line);
      return !next || next[1].length > indent + 1;
    });
    root.append(listItem(match ? match[3] : lines[i].trim(), lines.slice(i + 1, end), depth));
    i = end;
  }
  return root;
}

function listItem(text, more, depth) {
  const task = /^\[([ xX])\]\s+(.*)$/.exec(text);
  const node = element('li');
  if (task) {
    node.append(element('input', {type: 'checkbox', disabled: true, checked: task[1] !== ' ', 'aria-label': task[2]}), ' ');
    text = task[2];
  }
  node.append(...inline(text));
  while (more.length && !more.at(-1).trim()) more.pop();
  if (!more.length) return node;
  const strip = Math.min(...more.filter(line => line.trim()).map(indentOf));
  const inner = more.map(line => line.slice(strip));
  node.append(...(depth < kDeepest ? blocks(inner, depth + 1).map(part => part.node) : [inner.join('\n')]));
  return node;
}

function takeWhile(lines, from, test) {
  let end = from;
  while (end < lines.length && test(lines[end])) end++;
  return end;
}

const kRule = /^\s*([-*_]\s*){3,}$/;
const kTableRule = /^\s*\|?(\s*:?-+:?\s*\|)+\s*:?-*:?\s*$/;
const startsBlock = line => /^\s*(```|~~~|#{1,6}\s|>|\$\$|\\\[)/.test(line) || kRule.test(line) || kItem.test(line);

// A list goes on behind an empty line where the next line is an item or indented.
function endOfList(lines, from) {
  const inList = line => kItem.test(line) || /^\s{2,}\S/.test(line);
  const first = kItem.exec(lines[from]);
  for (let end = from + 1; ; end++) {
    if (end >= lines.length) return end;
    if (inList(lines[end])) {
      const next = kItem.exec(lines[end]);
      if (next && next[1].length <= first[1].length && /\d/.test(next[2]) !== /\d/.test(first[2])) return end;
      continue;
    }
    if (lines[end].trim() || !inList(lines[end + 1] ?? '')) return end;
  }
}

function displayedMath(lines, i) {
  const open = /^\s*(\$\$|\\\[)/.exec(lines[i])?.[1];
  if (!open) return null;
  const close = open === '$$' ? '$$' : '\\]';
  const rest = lines[i].trim().slice(2);
  if (rest.trimEnd().endsWith(close)) {
    return [formula(rest.trimEnd().slice(0, -2), true, lines[i]), i + 1];
  }
  if (rest.includes(close)) return null;
  const end = takeWhile(lines, i + 1, text => !text.trimEnd().endsWith(close) && text.trim() !== '');
  if (end >= lines.length || !lines[end].trim()) return null;
  const inner = [rest, ...lines.slice(i + 1, end), lines[end].trimEnd().slice(0, -2)].join('\n');
  return [formula(inner, true, lines.slice(i, end + 1).join('\n')), end + 1];
}

// The block that begins at lines[i], and where the next begins.
function block(lines, i, depth) {
  const line = lines[i];
  const fence = /^\s*(```+|~~~+)\s*([\w+#.-]{0,30})/.exec(line);
  if (fence) {
    const strip = indentOf(line);
    const end = takeWhile(lines, i + 1, text => !text.trim().startsWith(fence[1]));
    const inner = lines.slice(i + 1, end).map(text => text.slice(Math.min(strip, indentOf(text))));
    return [codeBlock(inner.join('\n'), fence[2]), end + 1];
  }
  const heading = /^(#{1,6})\s+(.*)$/.exec(line);
  if (heading) {
    return [element('h' + Math.min(6, heading[1].length + 2), {}, ...inline(heading[2].trim().replace(/ #+$/, ''))), i + 1];
  }
  if (kRule.test(line)) return [element('hr'), i + 1];
  if (/^\s*>/.test(line)) {
    const end = takeWhile(lines, i, text => /^\s*>/.test(text));
    const inner = lines.slice(i, end).map(text => text.replace(/^\s*>\s?/, ''));
    const nodes = depth < kDeepest ? blocks(inner, depth + 1).map(part => part.node) : [inner.join('\n')];
    return [element('blockquote', {}, ...nodes), end];
  }
  if (kItem.test(line)) {
    const end = endOfList(lines, i);
    return [list(lines.slice(i, end), depth), end];
  }
  if (line.includes('|') && kTableRule.test(lines[i + 1] ?? '')) {
    const end = takeWhile(lines, i, text => text.includes('|'));
    return [table(lines.slice(i, end)), end];
  }
  const math = displayedMath(lines, i);
  if (math) return math;
  const end = takeWhile(lines, i + 1, text => text.trim() && !startsBlock(text));
  return [element('p', {}, ...inline(lines.slice(i, end).join('\n'))), end];
}

// The blocks of a text: each node with the line at which it begins.
function blocks(lines, depth) {
  const parts = [];
  for (let i = 0; i < lines.length;) {
    if (!lines[i].trim()) {
      i++;
      continue;
    }
    const [node, next] = block(lines, i, depth);
    parts.push({node, line: i});
    i = next;
  }
  return parts;
}

export const markdown = text => blocks(text.split('\n'), 0).map(part => part.node);

// A text that grows, drawn into `root`. Blocks before the last one are kept, so that a long answer does not
// cost more with every token.
export class GrowingMarkdown {
  constructor(root) {
    this.root = root;
    this.text = '';
    this.kept = 0;  // characters whose blocks stay
    this.last = [];  // nodes of what may still change
  }

  show(text) {
    if (!text.startsWith(this.text)) {
      this.root.replaceChildren();
      this.kept = 0;
      this.last = [];
    }
    this.text = text;
    for (const node of this.last) node.remove();
    const lines = text.slice(this.kept).split('\n');
    const parts = blocks(lines, 0);
    this.root.append(...parts.map(part => part.node));
    this.last = parts.slice(-1).map(part => part.node);
    if (parts.length > 1) {
      for (let i = 0; i < parts.at(-1).line; i++) this.kept += lines[i].length + 1;
    }
  }

  // The text is whole: what later lines would have changed is drawn anew.
  finish(text) {
    this.root.replaceChildren(...markdown(text));
    this.text = text;
    this.kept = 0;
    this.last = [...this.root.childNodes];
  }
}
