// The data that stays in this browser: conversations, each under a key of its own, and settings. A browser gives a page
// some 5 million characters; when they are used up, the page goes on without saving and says so (state.storage). Keys
// for the server are never written here.
import {FormatError, readConversation, readSetup} from './exchange.js';

const kConversation = 'heddle.conversation.';
const kSettings = 'heddle.settings';
export const kRoughLimit = 5_000_000;  // characters: what browsers commonly allow

// Local storage, or null where the browser refuses it.
function storage() {
  try { return window.localStorage; } catch { return null; }
}

// {conversations, unreadable}: those of other versions of this page, or damaged, are left where they are.
export function loadConversations() {
  const conversations = [];
  let unreadable = 0;
  const kept = storage();
  for (let i = 0; i < (kept?.length ?? 0); i++) {
    const key = kept.key(i);
    if (!key.startsWith(kConversation)) continue;
    const conversation = parse(kept.getItem(key));
    if (conversation && kConversation + conversation.id === key) conversations.push(conversation);
    else unreadable++;
  }
  return {conversations, unreadable};
}

function parse(text) {
  try {
    return readConversation(JSON.parse(text));
  } catch (error) {
    if (error instanceof FormatError || error instanceof SyntaxError) return null;
    throw error;
  }
}

// "" if it was kept, "full", or "none" where there is no storage at all.
function put(key, value) {
  const kept = storage();
  if (!kept) return 'none';
  try {
    kept.setItem(key, value);
    return '';
  } catch {
    return 'full';
  }
}

export const keepConversation = conversation => put(kConversation + conversation.id, JSON.stringify(conversation));
export const forgetConversation = id => storage()?.removeItem(kConversation + id);
export const keepSettings = settings => put(kSettings, JSON.stringify(settings));

const kThemes = ['', 'dark', 'light'];

export function loadSettings() {
  let value = {};
  try { value = JSON.parse(storage()?.getItem(kSettings)) ?? {}; } catch { /* damaged: begins anew */ }
  return {
    theme: kThemes.includes(value.theme) ? value.theme : '',
    live: value.live !== false,
    list: value.list !== false,
    setup: readSetup(value.setup),
    current: typeof value.current === 'string' ? value.current : null,
  };
}

export function usedCharacters() {
  const kept = storage();
  let used = 0;
  for (let i = 0; i < (kept?.length ?? 0); i++) used += kept.key(i).length + kept.getItem(kept.key(i)).length;
  return used;
}

// Calls `changed(id, conversation or null)` when another tab has kept or forgotten one.
export function watchOtherTabs(changed) {
  window.addEventListener('storage', event => {
    if (!event.key?.startsWith(kConversation)) return;
    const conversation = event.newValue === null ? null : parse(event.newValue);
    if (conversation || event.newValue === null) changed(event.key.slice(kConversation.length), conversation);
  });
}

// A draft of a message outlives a reload, in its tab.
const kDraft = 'heddle.draft';
export function keepDraft(text) {
  try { sessionStorage.setItem(kDraft, text); } catch { /* it is lost on reload */ }
}
export function loadDraft() {
  try { return sessionStorage.getItem(kDraft) ?? ''; } catch { return ''; }
}
