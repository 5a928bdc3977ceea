// The list of conversations, and what can be done with one or with all of them.
import {asMarkdown} from './conversation.js';
import {button, byId, download, element, sizeText} from './dom.js';
import {FormatError, kLongestFile, readExport, writeExport} from './exchange.js';
import {addImported, byDate, emit, on, remove, rename, restore, show, showNew, state} from './state.js';
import {kRoughLimit, usedCharacters} from './store.js';

const kRows = 300;  // of the list; a search finds the others
const filter = byId('filter'), title = byId('title');

const matches = (conversation, words) => !words || conversation.title.toLowerCase().includes(words) ||
  conversation.messages.some(message => message.content.toLowerCase().includes(words));

function row(conversation) {
  const current = conversation === state.current;
  const running = state.running.has(conversation);
  const name = conversation.title || 'Without a title';
  return element('li', {class: current ? 'current' : null},
    button(running ? `${name} …` : name, () => {
      show(conversation);
      emit('picked');
    }, {'aria-current': current ? 'true' : null, title: `${name}\n${new Date(conversation.updated).toLocaleString()}`}),
    button('×', () => removeWithUndo(conversation), {class: 'delete', 'aria-label': `Delete ${name}`, title: 'Delete'}));
}

function draw() {
  const words = filter.value.trim().toLowerCase();
  const found = byDate().filter(conversation => matches(conversation, words));
  const rows = found.slice(0, kRows).map(row);
  if (found.length > kRows) rows.push(element('li', {class: 'muted'}, `and ${found.length - kRows} more`));
  if (!found.length) rows.push(element('li', {class: 'muted'}, words ? 'Nothing found.' : 'What you ask appears here.'));
  const focused = [...byId('conversations').querySelectorAll('button')].indexOf(document.activeElement);
  byId('conversations').replaceChildren(...rows);
  if (focused >= 0) byId('conversations').querySelectorAll('button')[focused]?.focus();
  for (const id of ['export-all', 'delete-all']) byId(id).disabled = !state.conversations.size;
}

function drawTitle() {
  const {current} = state;
  if (document.activeElement !== title) title.value = current.title;
  byId('bar').hidden = current.empty;
  document.title = current.title ? `${current.title} – Heddle` : 'Heddle';
}

function drawStorage() {
  const banner = byId('banner');
  const texts = {
    full: 'This browser’s storage for this page is full: new messages stay in this page only, and are gone when it is closed. Export or delete conversations.',
    none: 'This browser keeps nothing for this page: conversations are gone when it is closed. Export those that you want to keep.',
  };
  banner.hidden = !state.storage;
  banner.textContent = texts[state.storage] ?? '';
  const used = Math.round(100 * usedCharacters() / kRoughLimit);
  const parts = [state.conversations.size ? `${used < 1 ? 'Less than 1' : used} % of what this browser keeps is used.` : ''];
  if (state.unreadable) parts.push(`${state.unreadable} conversations are of another version of this page, or damaged, and are not shown.`);
  byId('usage').textContent = parts.filter(Boolean).join(' ');
}

function removeWithUndo(conversation) {
  remove(conversation);
  emit('toast', {text: `“${conversation.title}” is deleted.`, undo: () => restore(conversation)});
}

const fileName = (text, end) => `${text.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60) || 'conversation'}.${end}`;

async function importFile(file) {
  try {
    if (file.size > kLongestFile) throw new FormatError(`it has ${sizeText(file.size)}; up to ${sizeText(kLongestFile)} are read`);
    const added = addImported(readExport(await file.text()));
    emit('toast', {text: added === 1 ? '1 conversation imported.' : `${added} conversations imported.`});
  } catch (error) {
    if (!(error instanceof FormatError)) throw error;
    emit('toast', {text: `Nothing was imported from ${file.name}: ${error.message}.`, alert: true});
  }
}

byId('new').addEventListener('click', () => {
  showNew();
  emit('picked');
});
filter.addEventListener('input', draw);
title.addEventListener('change', () => rename(state.current, title.value));
title.addEventListener('keydown', event => {
  if (event.key === 'Enter') byId('prompt').focus();
  if (event.key !== 'Escape') return;
  title.value = state.current.title;
  byId('prompt').focus();
});
byId('delete').addEventListener('click', () => removeWithUndo(state.current));
byId('export-markdown').addEventListener('click', () =>
  download(fileName(state.current.title, 'md'), asMarkdown(state.current), 'text/markdown'));
byId('export-json').addEventListener('click', () =>
  download(fileName(state.current.title, 'json'), writeExport([state.current]), 'application/json'));
byId('export-all').addEventListener('click', () =>
  download(`heddle-${new Date().toISOString().slice(0, 10)}.json`, writeExport(byDate()), 'application/json'));
byId('delete-all').addEventListener('click', () => {
  const all = byDate();
  for (const conversation of all) remove(conversation);
  emit('toast', {text: `${all.length} conversations are deleted.`, undo: () => { for (const one of all.reverse()) restore(one); }});
});
byId('import').addEventListener('click', () => byId('import-file').click());
byId('import-file').addEventListener('change', event => {
  const [file] = event.target.files;
  event.target.value = '';
  if (file) importFile(file);
});

on('current list running', draw);
on('current list path', drawTitle);
on('storage list', drawStorage);
