// The parts that are seen, their colours, and the keys of the whole page.
import {stop} from './answers.js';
import {button, byId, element} from './dom.js';
import {on, saveSettings, showNew, state} from './state.js';

const kWide = matchMedia('(min-width: 1000px)');
const {body} = document;
const tabs = [byId('tab-chat'), byId('tab-live')];

// On a narrow screen one view at a time, by tabs.
function select(tab) {
  body.dataset.view = tab.getAttribute('aria-controls');
  for (const other of tabs) {
    other.setAttribute('aria-selected', String(other === tab));
    other.tabIndex = other === tab ? 0 : -1;
  }
}
for (const tab of tabs) {
  tab.addEventListener('click', () => select(tab));
  tab.addEventListener('keydown', event => {
    if (event.key !== 'ArrowLeft' && event.key !== 'ArrowRight') return;
    const other = tabs[1 - tabs.indexOf(tab)];
    select(other);
    other.focus();
  });
}

// On a wide screen the list and the live view can be folded, and stay so; on a narrow one the list lies over the rest.
function fold(name, open) {
  body.dataset[name] = open ? 'open' : 'folded';
  byId(name + '-toggle').setAttribute('aria-expanded', String(open));
}
function toggle(name) {
  const open = body.dataset[name] !== 'open';
  fold(name, open);
  if (name === 'list' && !kWide.matches) {
    if (open) byId('new').focus();
    return;
  }
  state.settings[name] = open;
  saveSettings();
}
function closeList() {
  if (!kWide.matches) fold('list', false);
}
function toggleLive() {
  if (kWide.matches) toggle('live');
  else select(tabs[body.dataset.view === 'live' ? 0 : 1]);
}
const unfold = () => {
  fold('list', kWide.matches && state.settings.list);
  fold('live', state.settings.live);
};
kWide.addEventListener('change', unfold);
byId('list-toggle').addEventListener('click', () => toggle('list'));
byId('live-toggle').addEventListener('click', () => toggle('live'));
byId('list-cover').addEventListener('click', closeList);
on('picked', () => {
  closeList();
  select(tabs[0]);
  if (kWide.matches) byId('prompt').focus();  // on a phone this would open the keyboard
});

const root = document.documentElement;
const drawTheme = () => {
  if (state.settings.theme) root.dataset.theme = state.settings.theme;
  else delete root.dataset.theme;
};
byId('theme').addEventListener('click', () => {
  const system = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  const next = (state.settings.theme || system) === 'dark' ? 'light' : 'dark';
  state.settings.theme = next === system ? '' : next;  // as the system has it: follows it again
  saveSettings();
  drawTheme();
});

// A line at the bottom that goes away by itself, with a way back where there is one.
let leaving = 0;
on('toast', ({text, undo, alert}) => {
  const toast = byId('toast');
  clearTimeout(leaving);
  const hide = () => toast.replaceChildren();
  const parts = [element('span', {}, text)];
  if (undo) parts.push(button('Undo', () => { hide(); undo(); }, {class: 'small'}));
  parts.push(button('×', hide, {class: 'small', 'aria-label': 'Close'}));
  toast.replaceChildren(...parts);
  leaving = setTimeout(hide, alert ? 30_000 : 10_000);
});

const menu = byId('conversation-menu');
document.addEventListener('click', event => {
  if (menu.open && (!menu.contains(event.target) || event.target.tagName === 'BUTTON')) menu.open = false;
});

const help = byId('help-dialog');
byId('help').addEventListener('click', () => help.showModal());

function escape() {
  if (menu.open) {
    menu.open = false;
    menu.querySelector('summary').focus();
  } else if (!kWide.matches && body.dataset.list === 'open') {
    closeList();
    byId('list-toggle').focus();
  } else {
    stop();
  }
}

const kKeys = {
  '/': () => byId('prompt').focus(),
  n: () => { showNew(); byId('prompt').focus(); },
  s: () => { byId('settings').open = !byId('settings').open; },
  f: () => { fold('list', true); byId('filter').focus(); },
  l: toggleLive,
  '?': () => help.showModal(),
};
document.addEventListener('keydown', event => {
  if (help.open) return;
  if (event.key === 'Escape') escape();
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? '');
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(kKeys, event.key)) return;
  event.preventDefault();
  kKeys[event.key]();
});

unfold();
drawTheme();
