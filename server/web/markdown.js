// Markdown to DOM nodes. What the model wrote only ever becomes text nodes and a fixed set of elements:
// no markup of its own, no attributes but href of http(s) and mailto links.
const markdown = (() => {
  function element(name, ...children) {
    const node = document.createElement(name);
    node.append(...children);
    return node;
  }

  function link(text, target) {
    let url;
    try { url = new URL(target); } catch { return document.createTextNode(text); }
    if (!['http:', 'https:', 'mailto:'].includes(url.protocol)) return document.createTextNode(text);
    const node = element('a', text);
    node.href = url.href;
    node.target = '_blank';
    node.rel = 'noopener noreferrer';
    node.title = url.href;
    return node;
  }

  // In the order in which they are tried at each place; the first match from the left wins.
  const spans = [
    [/(`+)([\s\S]*?[^`])\1(?!`)/, m => element('code', m[2].trim())],
    [/\[([^\]\n]{1,500})\]\(([^()\s]{1,2000})\)/, m => link(m[1], m[2])],
    [/https?:\/\/[^\s<>"')\]]{1,2000}/, m => link(m[0], m[0])],
    [/\*\*(?=\S)([^\n]*?\S)\*\*/, m => element('strong', ...inline(m[1]))],
    [/\*(?=[^\s*])([^*\n]*[^\s*])\*/, m => element('em', ...inline(m[1]))],
    [/(?<!\w)_(?=[^\s_])([^_\n]*[^\s_])_(?!\w)/, m => element('em', ...inline(m[1]))],
    [/~~(?=\S)([^\n]*?\S)~~/, m => element('del', ...inline(m[1]))],
  ];

  function inline(text) {
    const nodes = [];
    while (text) {
      let best = null, make = null;
      for (const [pattern, build] of spans) {
        const match = pattern.exec(text);
        if (match && (!best || match.index < best.index)) [best, make] = [match, build];
      }
      if (!best) break;
      if (best.index > 0) nodes.push(text.slice(0, best.index));
      nodes.push(make(best));
      text = text.slice(best.index + best[0].length);
    }
    if (text) nodes.push(text);
    return nodes;
  }

  function codeBlock(lines) {
    const code = element('code', lines.join('\n'));
    const copy = element('button', 'Copy');
    copy.type = 'button';
    copy.className = 'small';
    copy.addEventListener('click', () => navigator.clipboard?.writeText(code.textContent));
    return element('div', element('pre', code), copy);
  }

  const cells = line => line.trim().replace(/^\||\|$/g, '').split('|').map(cell => cell.trim());

  function table(lines) {
    const row = (line, name) => element('tr', ...cells(line).map(cell => element(name, ...inline(cell))));
    return element('table', element('thead', row(lines[0], 'th')),
                   element('tbody', ...lines.slice(2).map(line => row(line, 'td'))));
  }

  const item = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

  // Items of one depth, with deeper ones as lists inside; `depth` bounds the recursion.
  function list(lines, depth) {
    const first = item.exec(lines[0]);
    const ordered = /\d/.test(first[2]);
    const root = element(ordered ? 'ol' : 'ul');
    if (ordered) root.start = parseInt(first[2], 10);
    const indent = first[1].length;
    for (let i = 0; i < lines.length;) {
      const match = item.exec(lines[i]);
      const node = element('li', ...inline(match ? match[3] : lines[i].trim()));
      let end = i + 1;
      while (end < lines.length) {
        const next = item.exec(lines[end]);
        if (next && next[1].length <= indent + 1) break;
        end++;
      }
      const inner = lines.slice(i + 1, end);
      if (inner.length) node.append(...(depth < 8 ? blocks(inner, depth + 1) : [inner.join('\n')]));
      root.append(node);
      i = end;
    }
    return root;
  }

  function takeWhile(lines, from, test) {
    let end = from;
    while (end < lines.length && test(lines[end])) end++;
    return end;
  }

  const startsBlock = line => /^\s*(```|~~~|#{1,6}\s|>|([-*_]\s*){3,}$)/.test(line) || item.test(line);

  // The block that begins at lines[i], and where the next begins.
  function block(lines, i, depth) {
    const line = lines[i];
    const fence = /^\s*(```+|~~~+)/.exec(line);
    if (fence) {
      const end = takeWhile(lines, i + 1, text => !text.trim().startsWith(fence[1]));
      return [codeBlock(lines.slice(i + 1, end)), end + 1];
    }
    const heading = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    if (heading) return [element('h' + Math.min(6, heading[1].length + 2), ...inline(heading[2])), i + 1];
    if (/^\s*([-*_]\s*){3,}$/.test(line)) return [element('hr'), i + 1];
    if (/^\s*>/.test(line)) {
      const end = takeWhile(lines, i, text => /^\s*>/.test(text));
      const inner = lines.slice(i, end).map(text => text.replace(/^\s*>\s?/, ''));
      return [element('blockquote', ...(depth < 8 ? blocks(inner, depth + 1) : [inner.join('\n')])), end];
    }
    if (item.test(line)) {
      const end = takeWhile(lines, i, text => item.test(text) || /^\s{2,}\S/.test(text));
      return [list(lines.slice(i, end), depth), end];
    }
    if (line.includes('|') && /^\s*\|?(\s*:?-+:?\s*\|)+\s*:?-*:?\s*$/.test(lines[i + 1] ?? '')) {
      const end = takeWhile(lines, i, text => text.includes('|'));
      return [table(lines.slice(i, end)), end];
    }
    const end = takeWhile(lines, i + 1, text => text.trim() && !startsBlock(text));
    return [element('p', ...inline(lines.slice(i, end).join('\n'))), end];
  }

  function blocks(lines, depth) {
    const nodes = [];
    for (let i = 0; i < lines.length;) {
      if (!lines[i].trim()) { i++; continue; }
      const [node, next] = block(lines, i, depth);
      nodes.push(node);
      i = next;
    }
    return nodes;
  }

  return text => blocks(text.split('\n'), 0);
})();
