// All state of the page, in one place. Views change it through the functions here and hear of changes by their names:
//   current    another conversation is shown          list      conversations came, went, or were renamed
//   path       the shown messages are others          message   one message has grown (given with it)
//   running    an answer has begun or ended           storage   what is kept has changed, or can no longer be kept
//   setup      the conversation's setup was replaced  models    the server's models are known
//   key        a key for the server was typed
import {Conversation} from './conversation.js';
import {sameMessages, withNewId} from './exchange.js';
import * as store from './store.js';

export const completesTexts = document.body.dataset.mode === 'completion';

export const state = {
  conversations: new Map(),  // by id
  current: null,
  settings: store.loadSettings(),
  keys: {api: '', admin: ''},  // in memory only
  models: [],
  running: new Map(),  // by conversation: {controller, message, reading}
  storage: '',  // "", "full" or "none"
  unreadable: 0,
};

const listeners = new Map();
export function on(names, act) {
  for (const name of names.split(' ')) {
    if (!listeners.has(name)) listeners.set(name, []);
    listeners.get(name).push(act);
  }
}
export function emit(name, what) {
  for (const act of listeners.get(name) ?? []) act(what);
}

// An empty conversation is not kept; it has the setup of the one before.
function begin() {
  return new Conversation({kind: completesTexts ? 'text' : 'chat', setup: {...state.settings.setup}});
}

export function show(conversation) {
  state.current = conversation;
  state.settings.current = conversation.id;
  saveSettings();
  emit('current');
}

export const showNew = () => show(begin());

export const byDate = () => [...state.conversations.values()].sort((a, b) => b.updated - a.updated);
export const runningHere = () => state.running.get(state.current) ?? null;

// --- keeping ---

const waiting = new Map();  // conversations that will be kept soon: their timers
const costs = new Map();  // milliseconds that keeping took last
const kSoonMs = 400;
const kShareOfTime = 20;  // keeping a long conversation while it grows takes at most a 20th of the time

export function save(conversation) {
  if (!state.conversations.has(conversation.id)) {
    if (conversation.empty) return;
    state.conversations.set(conversation.id, conversation);
    emit('list');
  }
  if (waiting.has(conversation)) return;
  const soon = Math.max(kSoonMs, kShareOfTime * (costs.get(conversation) ?? 0));
  waiting.set(conversation, setTimeout(() => saveNow(conversation), soon));
}

export function saveNow(conversation) {
  clearTimeout(waiting.get(conversation));
  waiting.delete(conversation);
  if (!state.conversations.has(conversation.id)) return;  // deleted meanwhile
  const began = performance.now();
  noteStorage(store.keepConversation(conversation));
  costs.set(conversation, performance.now() - began);
}

function noteStorage(problem) {
  state.storage = problem;
  emit('storage');
}

export const saveSettings = () => store.keepSettings(state.settings);

export function setSetup(setup) {
  state.current.setup = setup;
  state.settings.setup = {...setup};
  saveSettings();
  if (!state.current.empty) save(state.current);
}

// --- the list ---

export function rename(conversation, title) {
  conversation.title = title.trim().slice(0, 200) || conversation.title;
  conversation.updated = Date.now();
  save(conversation);
  emit('list');
}

export function remove(conversation) {
  state.running.get(conversation)?.controller.abort();
  state.conversations.delete(conversation.id);
  store.forgetConversation(conversation.id);
  if (state.storage === 'full') retryAll();
  emit('list');
  emit('storage');
  if (state.current === conversation) showNew();
}

export function restore(conversation) {
  state.conversations.set(conversation.id, conversation);
  saveNow(conversation);
  emit('list');
  show(conversation);
}

// There may be room again.
function retryAll() {
  for (const conversation of state.conversations.values()) {
    noteStorage(store.keepConversation(conversation));
    if (state.storage) return;
  }
}

// Takes over conversations from a file; how many were new.
export function addImported(conversations) {
  let added = 0;
  for (const imported of conversations) {
    const mine = state.conversations.get(imported.id);
    if (mine && sameMessages(mine, imported)) continue;
    const conversation = mine ? withNewId(imported) : imported;
    state.conversations.set(conversation.id, conversation);
    saveNow(conversation);
    added++;
  }
  emit('list');
  if (added) show(byDate().find(c => conversations.includes(c)) ?? byDate()[0]);
  return added;
}

// --- the start, and other tabs ---

function fromOtherTab(id, copy) {
  const mine = state.conversations.get(id);
  if (!copy) {
    if (!mine) return;
    state.conversations.delete(id);
    state.running.get(mine)?.controller.abort();
    emit('list');
    if (state.current === mine) showNew();
    return;
  }
  if (!mine) {
    state.conversations.set(id, copy);
    emit('list');
    return;
  }
  const {changed, ahead} = mine.merge(copy);
  if (ahead) save(mine);
  if (!changed) return;
  emit('list');
  if (mine === state.current) emit('path');
}

export function start() {
  const {conversations, unreadable} = store.loadConversations();
  for (const conversation of conversations) state.conversations.set(conversation.id, conversation);
  state.unreadable = unreadable;
  store.watchOtherTabs(fromOtherTab);
  window.addEventListener('pagehide', () => { for (const conversation of [...waiting.keys()]) saveNow(conversation); });
  const last = state.conversations.get(state.settings.current);
  if (last) show(last);
  else showNew();
  noteStorage(store.keepSettings(state.settings));
}
