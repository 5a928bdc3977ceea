// Making and finding elements. Text only ever becomes text nodes: nothing in this page parses markup.

export const byId = id => document.getElementById(id);

// An element with attributes and children (nodes or text). Attributes that are null or false are left out;
// functions are listeners, by the name of their event.
export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === 'function') node.addEventListener(key, value);
    else if (value === true) node.setAttribute(key, '');
    else if (value !== null && value !== false && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

export function button(text, act, attributes = {}) {
  return element('button', {type: 'button', click: act, ...attributes}, text);
}

// Numbers as people read them: 0.25, 12.5, 1250.
export const short = value => value === null || value === undefined ? '–' : Number.isInteger(value) ? String(value)
  : value >= 1000 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2).replace(/\.?0+$/, '');

export function sizeText(bytes) {
  if (bytes >= 2 ** 30) return `${(bytes / 2 ** 30).toFixed(1)} GiB`;
  if (bytes >= 2 ** 20) return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
  return bytes >= 1024 ? `${(bytes / 1024).toFixed(0)} KiB` : `${bytes} B`;
}

// Browsers offer the clipboard to pages of HTTPS and of this machine only; elsewhere a selection is copied.
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = element('textarea', {class: 'unseen', 'aria-hidden': 'true'});
  field.value = text;
  const focused = document.activeElement;
  document.body.append(field);
  field.select();
  const copied = document.execCommand('copy');
  field.remove();
  focused?.focus();
  if (!copied) throw new Error('this browser did not copy');
}

// A button that copies and says for a moment whether it did.
export function copyButton(textOf, name = 'Copy') {
  return button(name, async event => {
    const node = event.currentTarget;
    try {
      await copyText(textOf());
      node.textContent = 'Copied';
    } catch {
      node.textContent = 'Not copied';
    }
    setTimeout(() => { node.textContent = name; }, 1500);
  }, {class: 'small'});
}

// Offers `text` as a file.
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], {type}));
  const link = element('a', {href: url, download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
